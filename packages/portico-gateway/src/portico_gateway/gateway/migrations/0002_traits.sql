-- What is known of upstreams besides their lists, such as whether they have tasks: clients are told before they are there.
create table portico_upstream_trait (
    upstream text not null primary key,
    traits text not null,
    kept_at double precision not null
);
