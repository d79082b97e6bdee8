-- What a filter finds memories by, the newest first. Few have a path, a source or a branch.
drop index memory_by_time;
create index memory_by_time on memory (at desc, id, status);
create index memory_by_place on memory (domain, project, namespace, at desc, id);
create index memory_by_status on memory (status, at desc, id) where status <> 'active';
create index memory_by_author on memory (author, at desc, id) where author is not null;
create index memory_by_thread on memory (thread, at desc, id) where thread is not null;
create index memory_by_source on memory (source, at desc, id) where source is not null;
create index memory_by_branch on memory (branch, at desc, id) where branch is not null;
create index memory_by_path on memory (path collate "C", at desc, id) where path is not null;

-- Tags and mentions know the time of their memory, so that the newest are found first.
alter table memory_tag add column at bigint not null default 0;
update memory_tag set at = (select memory.at from memory where memory.id = memory_tag.memory);
drop index memory_tag_tag;
create index memory_tag_tag on memory_tag (tag, at desc, memory);
alter table memory_mention add column at bigint not null default 0;
update memory_mention set at = (select memory.at from memory where memory.id = memory_mention.memory);
drop index memory_mention_entity;
create index memory_mention_entity on memory_mention (entity, at desc, memory);

-- How many memories there are of a kind (tallies.py): current ones with a tag or on a branch, those in a state that is
-- not active, and vectors (with an empty name). The current ones of each place are counted in memory_scope.
create table memory_tally (
    kind text collate "C" not null,
    name text collate "C" not null,
    memories bigint not null,
    primary key (kind, name)
);
create index memory_tally_most on memory_tally (kind, memories desc, name);
insert into memory_tally (kind, name, memories)
select 'tag', memory_tag.tag, count(*) from memory_tag join memory on memory.id = memory_tag.memory
where memory.status in ('active', 'pending') group by memory_tag.tag;
insert into memory_tally (kind, name, memories)
select 'branch', branch, count(*) from memory
where branch is not null and status in ('active', 'pending') group by branch;
insert into memory_tally (kind, name, memories)
select 'status', status, count(*) from memory where status <> 'active' group by status;
insert into memory_tally (kind, name, memories)
select 'vector', '', count(*) from memory_vector having count(*) > 0;

-- How many current memories mention an entity.
alter table memory_entity add column mentions bigint not null default 0;
update memory_entity set mentions = (
    select count(*) from memory_mention join memory on memory.id = memory_mention.memory
    where memory_mention.entity = memory_entity.name and memory.status in ('active', 'pending')
);
create index memory_entity_most on memory_entity (mentions desc, name);
create index memory_entity_kind on memory_entity (kind, mentions desc, name);
