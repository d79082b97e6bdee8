-- What upstreams have listed, so that it can be shown before they are there.
create table portico_upstream_list (
    upstream text not null primary key,
    lists text not null,
    kept_at double precision not null
);
