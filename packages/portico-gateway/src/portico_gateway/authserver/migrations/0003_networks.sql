-- Where unfinished logins and unused registrations come from, so that none of their networks takes the room of others.
alter table provider_flow add column network text not null default '';
alter table provider_flow add column wider_network text not null default '';
alter table provider_client add column network text not null default '';
alter table provider_client add column wider_network text not null default '';
create index provider_flow_network on provider_flow (wider_network, network);
create index provider_client_network on provider_client (wider_network, network);
