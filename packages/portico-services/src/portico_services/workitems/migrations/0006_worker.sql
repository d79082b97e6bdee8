-- The tasks of one worker.
create index work_item_worker on work_item (project, worker, priority, id desc) where worker is not null;
