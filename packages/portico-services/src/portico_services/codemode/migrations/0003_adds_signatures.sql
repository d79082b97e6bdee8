-- A row without one was not written by a process that has the key of the store, and is not believed.
alter table portico_run add column signature text;
alter table portico_run_call add column signature text;
alter table portico_saved_script add column signature text;
