-- How urgent a task is in truth: as much as the most urgent open one that waits for it, as a blocker or as a part.
alter table work_item add column urgency bigint not null default 3;
update work_item set urgency = priority;
with recursive reached(id, urgency) as (
    select id, priority from work_item where status in ('pending', 'in_progress')
    union
    select waited.id, reached.urgency
    from reached
    join work_item above on above.id = reached.id and above.status in ('pending', 'in_progress')
    join (
        select item as above_id, blocker as id from work_item_blocker
        union all
        select parent_id, id from work_item where parent_id is not null
    ) waited on waited.above_id = reached.id
)
update work_item set urgency = found.urgency
from (select id, min(urgency) as urgency from reached group by id) found
where found.id = work_item.id and found.urgency < work_item.urgency;
drop index work_item_ready;
create index work_item_ready on work_item (status, urgency, id)
    where status = 'pending' and blocked = false and children_open = 0;
