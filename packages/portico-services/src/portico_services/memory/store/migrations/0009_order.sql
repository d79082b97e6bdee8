-- What is new comes last in these, and they are read backwards: at the end of a tree there is room, and a row that comes
-- first moves those of three pages.
drop index memory_by_time;
drop index memory_by_place;
drop index memory_by_status;
drop index memory_by_author;
drop index memory_by_thread;
drop index memory_by_source;
drop index memory_by_branch;
drop index memory_by_path;
create index memory_by_time on memory (at, id desc, status);
create index memory_by_place on memory (domain, project, namespace, at, id desc);
create index memory_by_status on memory (status, at, id desc) where status <> 'active';
create index memory_by_author on memory (author, at, id desc) where author is not null;
create index memory_by_thread on memory (thread, at, id desc) where thread is not null;
create index memory_by_source on memory (source, at, id desc) where source is not null;
create index memory_by_branch on memory (branch, at, id desc) where branch is not null;
create index memory_by_path on memory (path collate "C", at, id desc) where path is not null;

-- A quarter of a digest finds the text, and takes a third of the pages.
drop index memory_by_digest;
create index memory_by_digest on memory (substr(digest, 1, 16));

-- Of each of the five kinds the most mentioned are found by memory_entity_kind, and so are those of all.
drop index memory_entity_most;
