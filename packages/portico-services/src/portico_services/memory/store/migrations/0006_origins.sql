-- Where a memory came by a sync: the remote, and whom git names as the author of which commit.
alter table memory add column origin text;

-- The commit that both sides had when they last met.
create table memory_meeting (
    place text primary key,
    tip text not null
);
-- Files of others that were not taken, so that they are not looked through again at every sync. `lens` is what the
-- screening went by.
create table memory_refused (
    place text not null,
    memory text not null,
    digest text not null,
    why text not null,
    lens text not null,
    at bigint not null,
    primary key (place, memory)
);
