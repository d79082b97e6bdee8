create table portico_fleet_key (
    id text primary key,
    server text not null,
    secret text not null,
    created_at double precision not null
);

create index portico_fleet_key_server on portico_fleet_key (server);
