-- A row without one was not written by a worker that has the key of the fleet, and is not believed.
alter table portico_session add column signature text;
alter table portico_worker add column signature text;
alter table portico_run_time_change add column signature text;
