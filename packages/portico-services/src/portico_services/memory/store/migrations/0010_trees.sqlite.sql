-- One tree in place of two for each of these: a row is kept in the order of its key. What is new comes last in an index,
-- as in 0009.
create table tag_by_key (
    memory text not null references memory (id) on delete cascade,
    tag text not null,
    at bigint not null default 0,
    primary key (memory, tag)
) without rowid;
insert into tag_by_key (memory, tag, at) select memory, tag, at from memory_tag order by memory, tag;
drop table memory_tag;
alter table tag_by_key rename to memory_tag;
create index memory_tag_tag on memory_tag (tag, at, memory desc);

create table entity_by_key (
    name text primary key,
    label text not null,
    kind text not null,
    created_at bigint not null,
    mentions bigint not null default 0
) without rowid;
insert into entity_by_key (name, label, kind, created_at, mentions)
select name, label, kind, created_at, mentions from memory_entity order by name;
drop table memory_entity;
alter table entity_by_key rename to memory_entity;
create index memory_entity_kind on memory_entity (kind, mentions desc, name);

create table mention_by_key (
    memory text not null references memory (id) on delete cascade,
    entity text not null references memory_entity (name) on delete cascade,
    at bigint not null default 0,
    primary key (memory, entity)
) without rowid;
insert into mention_by_key (memory, entity, at) select memory, entity, at from memory_mention order by memory, entity;
drop table memory_mention;
alter table mention_by_key rename to memory_mention;
create index memory_mention_entity on memory_mention (entity, at, memory desc);

create table relation_by_key (
    source text not null references memory_entity (name) on delete cascade,
    kind text not null,
    target text not null references memory_entity (name) on delete cascade,
    memory text not null references memory (id) on delete cascade,
    primary key (source, kind, target, memory)
) without rowid;
insert into relation_by_key (source, kind, target, memory)
select source, kind, target, memory from memory_relation order by source, kind, target, memory;
drop table memory_relation;
alter table relation_by_key rename to memory_relation;
create index memory_relation_target on memory_relation (target);
create index memory_relation_memory on memory_relation (memory);

create table tally_by_key (
    kind text not null,
    name text not null,
    memories bigint not null,
    primary key (kind, name)
) without rowid;
insert into tally_by_key (kind, name, memories) select kind, name, memories from memory_tally order by kind, name;
drop table memory_tally;
alter table tally_by_key rename to memory_tally;
create index memory_tally_most on memory_tally (kind, memories desc, name);
