-- Our memory as it was when both sides were found to have the same. As long as it is still that, its file is known
-- without being written. Null: it has to be looked at.
alter table memory_synced add column version bigint;
alter table memory_synced add column updated_at bigint;
alter table memory_synced add column status text;
-- The commit up to which everything of theirs has been looked at, and taken or refused.
alter table memory_meeting add column taken text;
