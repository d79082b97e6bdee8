-- A project is one of many, and has few scopes.
create index memory_scope_project on memory_scope (project);
