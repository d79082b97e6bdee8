-- How far each limit is used up, by all processes together: the time at which the next would come if all were spread out.
create table portico_quota (
    key text not null primary key,
    due_at double precision not null
);
