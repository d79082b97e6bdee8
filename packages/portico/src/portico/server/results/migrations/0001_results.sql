create table portico_result (
    id text primary key,
    owner text not null,
    created_at double precision not null,
    expires_at double precision not null,
    bytes bigint not null,
    parts text not null,
    is_complete bigint not null
);

create index portico_result_owned on portico_result (owner, created_at);
create index portico_result_expiring on portico_result (expires_at);

create table portico_result_chunk (
    result text not null references portico_result (id) on delete cascade,
    part bigint not null,
    number bigint not null,
    chars bigint not null,
    data bytea not null,
    mac bytea not null,
    primary key (result, part, number)
);
