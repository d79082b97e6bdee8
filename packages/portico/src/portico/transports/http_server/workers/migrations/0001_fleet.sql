create table portico_worker (
    id text primary key,
    address text,
    lease_until double precision not null
);

create table portico_session (
    id text primary key,
    owner text,
    path text not null,
    memo text not null,
    used_at double precision not null
);

create index portico_session_owner on portico_session (owner);
create index portico_session_used on portico_session (used_at);
