create table portico_run_time_change (
    id text primary key,
    server text not null,
    method text not null,
    name text not null,
    made_at double precision not null
);

create index portico_run_time_change_server on portico_run_time_change (server, made_at);
