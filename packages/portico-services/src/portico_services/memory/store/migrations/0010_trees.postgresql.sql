-- What is new comes last, as in 0009.
drop index memory_tag_tag;
create index memory_tag_tag on memory_tag (tag, at, memory desc);
drop index memory_mention_entity;
create index memory_mention_entity on memory_mention (entity, at, memory desc);
