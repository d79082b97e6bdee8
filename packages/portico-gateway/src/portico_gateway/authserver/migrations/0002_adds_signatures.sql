-- A row without one was not written by a process that has the sealing key, and is not believed.
alter table provider_client add column signature text;
alter table provider_grant add column signature text;
alter table provider_code add column signature text;
alter table provider_refresh add column signature text;
