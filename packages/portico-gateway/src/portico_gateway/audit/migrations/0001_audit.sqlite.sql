create table audit_record (
    chain text not null,
    number bigint not null,
    at bigint not null,
    body text not null,
    hash text not null,
    primary key (chain, number)
) without rowid;

create index audit_record_at on audit_record (at);

create table audit_head (
    chain text primary key,
    number bigint not null,
    hash text not null,
    ended boolean not null default false,
    covered bigint not null default 0
);

create table audit_checkpoint (
    number bigint primary key,
    at bigint not null,
    body text not null,
    signature text not null
);
