-- How many bytes the outcomes of its calls have.
alter table portico_run add column size bigint not null default 0;
