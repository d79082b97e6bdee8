-- Which run of a consolidation changed which memory, the version that this made, and the memory that now stands for it.
-- A summary that a run made stands for itself, at version 1.
create table memory_consolidated (
    run text not null,
    memory text not null references memory (id) on delete cascade,
    version bigint not null,
    kept text not null,
    primary key (run, memory)
);
create index memory_consolidated_memory on memory_consolidated (memory);
create index memory_consolidated_kept on memory_consolidated (kept);

-- Earlier runs are known by the reasons in the history, `consolidation <run> into <kept>`, and by the sources of the
-- summaries, `consolidation <run>`. A run has twelve characters.
insert into memory_consolidated (run, memory, version, kept)
select substr(reason, 15, 12), memory, min(version), min(substr(reason, 33)) from memory_event
where change = 'consolidated' and substr(reason, 1, 14) = 'consolidation ' and substr(reason, 27, 6) = ' into '
group by substr(reason, 15, 12), memory;
insert into memory_consolidated (run, memory, version, kept)
select substr(source, 15, 12), id, 1, id from memory
where substr(source, 1, 14) = 'consolidation ' and length(source) = 26
and exists (
    select 1 from memory_consolidated where memory_consolidated.run = substr(memory.source, 15, 12)
    and memory_consolidated.kept = memory.id and memory_consolidated.memory <> memory.id
);
