-- Of what a job runs and for whom. A row without one was not written by a process that has the key of the store.
alter table portico_job add column signature text;
