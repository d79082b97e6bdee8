-- What is dated after it was stored, as clocks that differ make it: hardly any. So what was known at a moment is found
-- without a look at all that was stored in the day after it (selection.py).
create index memory_ahead on memory (at, id desc) where at > created_at;
