-- People who belong together, and what each may do with the group.
create table memory_group (
    name text primary key,
    description text not null,
    created_at bigint not null
);
create table memory_group_member (
    name text not null references memory_group (name) on delete cascade,
    member text not null,
    role text not null,
    primary key (name, member)
);
