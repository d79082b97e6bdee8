-- Memories that seemed to contradict each other when the first of them came in. A memory beside itself was changed on
-- two sides of a sync, and one of the texts lost. The row goes when somebody has decided, or when either is gone.
create table memory_conflict (
    memory text not null references memory (id) on delete cascade,
    other text not null references memory (id) on delete cascade,
    why text not null,
    at bigint not null,
    primary key (memory, other)
);
create index memory_conflict_other on memory_conflict (other);
create index memory_conflict_at on memory_conflict (at);
