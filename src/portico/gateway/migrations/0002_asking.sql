-- The upstreams that ask questions which do not say what call they are for: each of their connections has one at a time.
create table portico_upstream_asking (
    upstream text not null primary key,
    kept_at double precision not null
);
