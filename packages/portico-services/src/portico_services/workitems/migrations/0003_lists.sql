-- Several lists in one store: a task is of a project, or of none, and then stands in every list.
alter table work_item add column project text collate "C" not null default '';
-- 9007199254740991, which is later than every date, is never: both engines then put it last.
alter table work_item add column due_at bigint not null default 9007199254740991;
-- JSON, for whoever reads the row. `work_item_label` is for whoever looks for a label.
alter table work_item add column labels text not null default '[]';

create table work_item_label (
    label text collate "C" not null,
    item text collate "C" not null references work_item (id) on delete cascade,
    primary key (label, item)
);
create index work_item_label_item on work_item_label (item, label);

-- Notes are events with a text; they are shown with the task.
create index work_item_noted on work_item_event (item, id) where change = 'note added';

-- The lists, each of a project.
drop index work_item_ready;
drop index work_item_blocked;
drop index work_item_all;
drop index work_item_status;
create index work_item_ready on work_item (project, status, urgency, due_at, id)
    where status = 'pending' and blocked = false and children_open = 0;
create index work_item_blocked on work_item (project, blocked, priority, id desc)
    where blocked = true and status in ('pending', 'in_progress');
create index work_item_all on work_item (project, priority, id desc);
create index work_item_status on work_item (project, status, priority, id desc);
create index work_item_due on work_item (project, due_at, id)
    where due_at < 9007199254740991 and status in ('pending', 'in_progress');
