-- How many calls at once each process may have of those that a limit allows, and until when.
create table portico_quota_slot (
    key text not null,
    holder text not null,
    held bigint not null,
    until_at double precision not null,
    primary key (key, holder)
);

create index portico_quota_slot_holder on portico_quota_slot (holder);
