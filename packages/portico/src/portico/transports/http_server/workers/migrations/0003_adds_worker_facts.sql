alter table portico_worker add column server text;
alter table portico_worker add column machine text;
alter table portico_worker add column pid bigint;
alter table portico_worker add column version text;
alter table portico_worker add column started_at double precision;
