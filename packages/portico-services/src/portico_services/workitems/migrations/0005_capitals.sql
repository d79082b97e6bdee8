-- Hosts to which `Owner/Name` and `owner/name` are one project (repository.py).
update work_item set project = lower(project)
where substr(project, 1, 11) = 'github.com/' or substr(project, 1, 11) = 'gitlab.com/'
or substr(project, 1, 14) = 'bitbucket.org/' or substr(project, 1, 13) = 'codeberg.org/'
or substr(project, 1, 14) = 'dev.azure.com/';
