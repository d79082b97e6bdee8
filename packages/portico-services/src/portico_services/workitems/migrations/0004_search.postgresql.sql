-- A search looks for parts of words. `work_item_term` has every word that ever stood in a task, `work_item_suffix` the
-- beginnings of all their ends, and `work_item_posting` the tasks that a word stands in. See terms.py.
create table work_item_term (
    term text collate "C" primary key
);
create table work_item_suffix (
    suffix text collate "C" not null,
    term text collate "C" not null,
    primary key (suffix, term)
);
create table work_item_posting (
    term text collate "C" not null,
    item text collate "C" not null,
    primary key (term, item)
);
-- Tasks whose text is not in the index yet, or is another now: to index many at once costs a fraction.
create table work_item_unindexed (
    item text collate "C" primary key
);
insert into work_item_unindexed (item) select id from work_item;
