package api

import (
	"net/http"
	"reflect"

	"mariposa/auth"
	"mariposa/contract"
)

// topics are all routes of the API, by topic of the documentation. Each route is
// listed once; route.go defines a row.
var topics = []topic{
	{"projects", "Projects, their manifests and versions.", []route{
		handle("GET /v1/projects", "list-projects", "List projects", (*server).listProjects).needs(auth.Ask),
		// It also needs CreateProject in the organization that the body names.
		handle("POST /v1/projects", "create-project", "Create a project from a manifest", (*server).createProject).
			needs(auth.Ask).heavy().audits("project.create").takes(newProjectBody).answers(http.StatusCreated).
			describe("The body is a manifest in YAML or JSON with the name in the query, or a JSON document with name and manifest."),
		handle("GET /v1/projects/{project}", "get-project", "Show a project", (*server).getProject).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}", "update-project", "Rename a project, or submit a new manifest, or both", (*server).updateProject).
			needs(auth.Deploy).heavy().on(projectInPath).varies(byRename).audits("project.update").takes(wrappedManifest),
		handle("DELETE /v1/projects/{project}", "delete-project", "Delete a project", (*server).deleteProject).
			needs(auth.Administer).on(projectInPath).audits("project.delete").answers(http.StatusAccepted).
			describe("The name is free at once; the project is gone once its last instance is."),
		// It also needs CreateProject in the other organization, and ReadSecrets for secrets.
		handle("POST /v1/projects/{project}/copy", "copy-project", "Make another project from the newest version of one", (*server).copyProject).
			needs(auth.Deploy).heavy().on(projectInPath).audits("project.copy").answers(http.StatusCreated).
			describe("No metadata is copied but what is named. To copy a secret takes the right to read it."),
		handle("POST /v1/projects/{project}/move", "move-project", "Give a project to another organization", (*server).moveProject).
			needs(auth.Administer).on(projectInPath).audits("project.move").
			describe("Its metadata moves with it, secrets too; instances keep running. Members of the former organization lose what that let them do."),
		handle("POST /v1/projects/{project}/plan", "plan-project", "What would be done, changing nothing", (*server).planProject).
			needs(auth.ReadProject).heavy().on(projectInPath).varies(byManifest).takes(optionalManifest).
			describe("With a manifest as the body, what it would change, for who may submit it; without one, what would happen right now. The steps are in order, " +
				"each assumed to succeed. Plans of manifests are noted in the audit."),
		handle("GET /v1/projects/{project}/manifest", "get-manifest", "The newest manifest, byte for byte as it was submitted", (*server).getManifest).
			needs(auth.ReadProject).on(projectInPath).serves(yamlContent).
			describe("YAML; generated if the manifest came as JSON."),
		handle("PUT /v1/projects/{project}/manifest", "put-manifest", "Submit a new manifest", (*server).putManifest).
			needs(auth.Deploy).heavy().on(projectInPath).audits("manifest.put").takes(manifestBody).
			describe("Either previous or force is needed, so that nobody overwrites what they have not seen. The same bytes again change nothing."),
		handle("GET /v1/projects/{project}/versions", "list-versions", "List the submitted versions, newest first", (*server).listVersions).needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/versions/{version}", "get-version", "Show one version, with its manifest", (*server).getVersion).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/versions/{version}/approval", "approve-version", "Let a version use protected secrets", (*server).approveVersion).
			needs(auth.Approve).on(projectInPath).audits("version.approve").
			describe("The approval is of the manifest, byte for byte, and of the values that it refers to: a version that brings the same back needs none of its own."),
		handle("DELETE /v1/projects/{project}/versions/{version}/approval", "withdraw-approval", "Take the approval of a version back", (*server).withdrawApproval).
			needs(auth.Approve).on(projectInPath).audits("version.withdraw").
			describe("Running instances stay; the version does not come into force again."),
		handle("GET /v1/projects/{project}/diff", "diff-versions", "What differs between two versions", (*server).diffVersions).needs(auth.ReadProject).heavy().on(projectInPath),
		handle("GET /v1/projects/{project}/tags", "list-tags", "List the tags of a project's versions", (*server).listTags).needs(auth.ReadProject).on(projectInPath),
		handle("POST /v1/projects/{project}/tags", "create-tag", "Give a version a tag, or move it there", (*server).createTag).
			needs(auth.Deploy).on(projectInPath).audits("tag.create").answers(http.StatusCreated).
			describe("A version that has a tag is kept for as long as it has one."),
		handle("GET /v1/projects/{project}/tags/{tag}", "get-tag", "Show a tag", (*server).getTag).needs(auth.ReadProject).on(projectInPath),
		handle("DELETE /v1/projects/{project}/tags/{tag}", "delete-tag", "Take a tag away", (*server).deleteTag).needs(auth.Deploy).on(projectInPath).audits("tag.delete"),
		handle("GET /v1/services", "list-all-services", "List services across projects", (*server).listAllServices).needs(auth.Ask),
		handle("GET /v1/projects/{project}/services", "list-services", "List the services of a project", (*server).listServices).needs(auth.ReadProject).on(projectInPath),
		handle("POST /v1/projects/{project}/services", "create-service", "Add a service to a project's manifest", (*server).addService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.create").takes(manifestBody).answers(http.StatusCreated).
			describe("The body is the service's definition in YAML or JSON, with its name in the query or as the key name. It makes a new version."),
		handle("GET /v1/projects/{project}/services/{service}", "get-service", "Show a service", (*server).getService).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/services/{service}", "put-service", "Replace a service's definition in a project's manifest", (*server).putService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.put").takes(manifestBody).
			describe("It makes a new version; all other lines of the manifest stay as they are."),
		handle("DELETE /v1/projects/{project}/services/{service}", "delete-service", "Take a service out of a project's manifest", (*server).deleteService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.delete").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/services/{service}/manifest", "get-service-manifest", "A service's definition in the newest manifest, as YAML", (*server).getServiceManifest).
			needs(auth.ReadProject).on(projectInPath).serves(yamlContent),
		handle("PUT /v1/projects/{project}/services/{service}/manifest", "put-service-manifest", "The same as putting the service", (*server).putService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.put").takes(manifestBody),
	}},
	{"metadata", "Values that manifests refer to, secrets among them.", []route{
		handle("GET /v1/projects/{project}/metadata", "get-metadata", "A project's metadata", (*server).getMetadata).
			needs(auth.ReadProject).heavy().on(projectInPath).varies(byReveal).
			describe("YAML as it was set, with secrets masked; with Accept: application/json a list with what the manifest says of each key."),
		handle("PUT /v1/projects/{project}/metadata", "put-metadata", "Replace a project's metadata", (*server).putMetadata).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.put").takes(metadataBody).
			describe("A YAML mapping of keys to texts, numbers and booleans. A secret that comes back masked stays as it was."),
		handle("GET /v1/projects/{project}/metadata/{key}", "get-metadata-key", "One value", (*server).getKey).needs(auth.ReadProject).heavy().on(projectInPath).varies(byReveal),
		handle("PUT /v1/projects/{project}/metadata/{key}", "put-metadata-key", "Set one value", (*server).putKey).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.set").takes(metadataValueBody).
			describe(`The value as plain text, or as JSON: {"value": …, "secret": true}.`),
		handle("DELETE /v1/projects/{project}/metadata/{key}", "delete-metadata-key", "Unset one value", (*server).deleteKey).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.delete"),
		handle("POST /v1/projects/{project}/metadata/{key}/incr", "increment-metadata-key", "Count a value up", (*server).increment).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.incr"),
		handle("POST /v1/projects/{project}/metadata/{key}/decr", "decrement-metadata-key", "Count a value down", (*server).decrement).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.decr"),
	}},
	{"people", "Users, organizations, roles, tokens and quotas.", []route{
		handle("GET /v1/projects/{project}/users", "list-project-users", "List who may do what in a project", (*server).listProjectUsers).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/users/{user}", "put-project-user", "Give a user a role in a project", (*server).putProjectUser).
			needs(auth.ManagePeople).on(projectInPath).audits("people.put"),
		handle("DELETE /v1/projects/{project}/users/{user}", "remove-project-user", "Take a user's role in a project away", (*server).removeProjectUser).
			needs(auth.ManagePeople).on(projectInPath).audits("people.remove"),
		handle("GET /v1/user", "whoami", "Who the caller is", (*server).whoami).needs(auth.Ask),
		handle("GET /v1/users", "list-users", "List the users that the caller works with", (*server).listUsers).needs(auth.Ask),
		handle("POST /v1/users", "create-user", "Make a user, with an organization of their own", (*server).createUser).
			needs(auth.RunInstallation).audits("user.create").answers(http.StatusCreated),
		handle("GET /v1/users/{user}", "get-user", "Show a user", (*server).getUser).needs(auth.Ask),
		handle("PUT /v1/users/{user}", "update-user", "Change a user", (*server).updateUser).needs(auth.RunInstallation).audits("user.update"),
		handle("DELETE /v1/users/{user}", "delete-user", "Delete a user", (*server).deleteUser).
			needs(auth.RunInstallation).audits("user.delete").
			describe("Their tokens let nobody in any more, and they leave every organization and project. What they own must be given away or deleted first."),
		handle("GET /v1/organizations", "list-organizations", "List the caller's organizations", (*server).listOrganizations).needs(auth.Ask),
		handle("POST /v1/organizations", "create-organization", "Make an organization; the caller owns it", (*server).createOrganization).
			needs(auth.Ask).audits("organization.create").answers(http.StatusCreated),
		handle("GET /v1/organizations/{organization}", "get-organization", "Show an organization", (*server).getOrganization).needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}", "update-organization", "Change an organization", (*server).updateOrganization).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("organization.update"),
		handle("DELETE /v1/organizations/{organization}", "delete-organization", "Delete an organization that has no projects", (*server).deleteOrganization).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("organization.delete"),
		handle("GET /v1/organizations/{organization}/members", "list-members", "List the members of an organization", (*server).listMembers).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/members/{user}", "put-member", "Make a user a member or owner of an organization", (*server).putMember).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("member.put"),
		// It also needs AdministerOrganization, unless callers remove themselves.
		handle("DELETE /v1/organizations/{organization}/members/{user}", "remove-member", "Take a user out of an organization, or leave it", (*server).removeMember).
			needs(auth.ReadOrganization).on(organizationInPath).audits("member.remove"),
		handle("GET /v1/organizations/{organization}/quota", "get-quota", "What an organization may ask for, and what it does", (*server).getQuota).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/quota", "put-quota", "Set what an organization may ask for", (*server).putQuota).
			needs(auth.RunInstallation).audits("quota.put").takes(uncheckedJSON).
			describe("A number sets a limit, null removes it, and what is left out stays. Resources already in use are kept, even above the limit."),
		handle("GET /v1/organizations/{organization}/policy", "get-policy", "What the manifests of an organization may ask for", (*server).getPolicy).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/policy", "put-policy", "Set what the manifests of an organization may ask for", (*server).putPolicy).
			needs(auth.RunInstallation).audits("policy.put").
			describe("What is left out stays. Versions are checked when they are submitted and when they are restored; running instances stay."),
		// Those for nodes also need RunInstallation.
		handle("GET /v1/tokens", "list-tokens", "List the caller's tokens, or those that let nodes join", (*server).listTokens).needs(auth.Ask),
		handle("POST /v1/tokens", "create-token", "Make a token", (*server).createToken).
			needs(auth.Ask).audits("token.create").answers(http.StatusCreated).
			describe("The token itself is in the answer and is never shown again. It may do what its user may, within its bounds, and ends with the token that made it. " +
				"Only installation admins create join tokens."),
		// These also need RunInstallation, unless the token is the caller's.
		handle("GET /v1/tokens/{token}", "get-token", "Show a token, with those that it made", (*server).getToken).needs(auth.Ask),
		handle("DELETE /v1/tokens/{token}", "revoke-token", "Revoke a token", (*server).revokeToken).
			needs(auth.Ask).audits("token.revoke").
			describe("The tokens that it created are revoked with it, in the same commit. A token that created others is revoked only with cascade=true."),
		handle("PUT /v1/tokens/{token}", "act-on-token", "Take over what a token made", (*server).actOnToken).
			needs(auth.RunInstallation).audits("token.adopt").
			describe("The tokens that it created become those of the token of this request, so that they survive when it is revoked."),
	}},
	{"state", "Goal and reality, and changes of the goal.", []route{
		handle("GET /v1/state", "get-state", "Goal and reality of all projects, or some", (*server).getState).needs(auth.Ask),
		handle("GET /v1/projects/{project}/state", "get-project-state", "Goal and reality of a project", (*server).getProjectState).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/state", "act-on-project", "Change the goal of a project", (*server).actOnProject).
			needs(auth.Operate).on(projectInPath).varies(byAction).audits("state.put").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/services/{service}/state", "get-service-state", "Goal and reality of a service", (*server).getServiceState).
			needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/services/{service}/state", "act-on-service", "Change the goal of a service", (*server).actOnService).
			needs(auth.Operate).on(projectInPath).varies(byAction).audits("state.put").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/healthchecks", "get-healthchecks", "What is checked of a project's services, and what came of it", (*server).getHealthChecks).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/services/{service}/healthchecks", "get-service-healthchecks", "What is checked of a service, and what came of it", (*server).getServiceHealthChecks).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/graph", "get-graph", "A project as a graph: its resources, their status, and who needs whom", (*server).getGraph).
			needs(auth.ReadProject).on(projectInPath).
			describe("What the version in force has, and what is left of former ones."),
	}},
	{"queue", "Tasks: every change that people can see.", []route{
		handle("GET /v1/queue", "list-tasks", "List tasks, newest first", (*server).listTasks).needs(auth.Ask),
		handle("GET /v1/queue/{task}", "get-task", "Show a task with its steps", (*server).getTask).needs(auth.ReadProject).on(taskInPath),
		handle("DELETE /v1/queue/{task}", "terminate-task", "Terminate a task", (*server).terminateTask).
			needs(auth.Operate).on(taskInPath).audits("task.terminate").answers(http.StatusAccepted).
			describe("Of an active one no further step begins, what is half-made is finished or removed, and its scope is frozen; the goal stays, so a thaw goes " +
				"on towards it. Of one that waits, its change is dropped and nothing is frozen."),
	}},
	{"instances", "What runs.", []route{
		handle("GET /v1/instances", "list-instances", "List instances", (*server).listInstances).needs(auth.Ask),
		// It also needs ManageInstances in the project that the body names.
		handle("POST /v1/instances", "create-instance", "Make an instance that no service manages", (*server).createInstance).
			needs(auth.Ask).audits("instance.create").takes(definitionBody).answers(http.StatusCreated).
			describe("The body names the project and what to run, with the keys of a service in a manifest. Nobody repairs, replaces or updates it; it runs until " +
				"it ends or is removed."),
		handle("GET /v1/instances/{instance}", "get-instance", "Show an instance, with its environment and details", (*server).getInstance).needs(auth.ReadProject).on(instanceInPath),
		handle("PUT /v1/instances/{instance}", "act-on-instance", "Do something to an instance", (*server).actOnInstance).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.act").answers(http.StatusAccepted).
			describe("A dummy instance can be crashed, for tests and demonstrations."),
		handle("DELETE /v1/instances/{instance}", "delete-instance", "Delete an unmanaged instance, or end by force what is stopping", (*server).deleteInstance).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.delete"),
		handle("GET /v1/instances/{instance}/logs", "get-logs", "What an instance wrote, as text, as it comes", (*server).getLogs).
			needs(auth.ReadProject).on(instanceInPath).varies(byReveal).serves(textContent),
		handle("GET /v1/instances/{instance}/exec", "exec", "Run a command inside an instance: a WebSocket", (*server).exec).
			needs(auth.Shell).on(instanceInPath).audits("instance.exec").answers(http.StatusSwitchingProtocols).
			describe("Every message is binary; its first byte says what it is: 0 input (nothing behind it: the end of the input), 1 output, 2 errors, 3 the end " +
				`({"exit_code": N}, or an error), 4 the terminal's size ({"rows": N, "cols": N}), 5 a signal ({"signal": "TERM"}). The command ends with the ` +
				"connection."),
	}},
	{"volumes", "What outlives it.", []route{
		handle("GET /v1/volumes", "list-volumes", "List volumes", (*server).listVolumes).needs(auth.Ask),
		handle("GET /v1/volumes/{volume}", "get-volume", "Show a volume", (*server).getVolume).needs(auth.ReadVolume).on(volumeInPath),
		handle("DELETE /v1/volumes/{volume}", "delete-volume", "Delete a volume and what is in it", (*server).deleteVolume).
			needs(auth.DeleteVolume).on(volumeInPath).audits("volume.delete").answers(http.StatusAccepted).
			describe("Not while an instance uses it, or is to be made that would. Its node removes it as soon as it can be reached."),
	}},
	{"networks", "Where it meets.", []route{
		handle("GET /v1/networks", "list-networks", "List networks", (*server).listNetworks).needs(auth.Ask),
		handle("GET /v1/networks/{network}", "get-network", "Show a network, with its part on each node", (*server).getNetwork).needs(auth.ReadNetwork).on(networkInPath),
		handle("DELETE /v1/networks/{network}", "delete-network", "Delete a network", (*server).deleteNetwork).
			needs(auth.DeleteNetwork).on(networkInPath).audits("network.delete").answers(http.StatusAccepted).
			describe("Not while an instance uses it, or is to be made that would. It goes by itself once no manifest names it any more."),
	}},
	{"nodes", "Where it runs.", []route{
		handle("GET /v1/nodes", "list-nodes", "List nodes by name", (*server).listNodes).needs(auth.RunInstallation),
		handle("GET /v1/nodes/{node}", "get-node", "Show a node", (*server).getNode).needs(auth.RunInstallation),
		handle("PUT /v1/nodes/{node}", "act-on-node", "Do something to a node", (*server).actOnNode).
			needs(auth.RunInstallation).audits("node.act").
			describe("Purge lets quarantined instances go. A dummy node can be lost and restored, for tests and demonstrations."),
		handle("DELETE /v1/nodes/{node}", "delete-node", "Forget a node", (*server).deleteNode).
			needs(auth.RunInstallation).audits("node.delete").
			describe("Only one that is unknown. While instances are assigned to it, or volumes are on it, force is needed: they are forgotten with it. Instances " +
				"are made anew elsewhere, with empty volumes. Should the node come back, what it still runs is put in quarantine, and the folders of its " +
				"volumes are left alone."),
	}},
	{"events", "The feed of changes, as a list or live.", []route{
		handle("GET /v1/events", "list-events", "The feed of changes, as a list or live", (*server).events).
			needs(auth.Ask).heavy().serves(content{"application/json": reflect.TypeFor[contract.Events](), "text/event-stream": reflect.TypeFor[contract.Event]()}).
			describe("With Accept: text/event-stream it is a live stream whose ids are revisions: after a disconnect it goes on at Last-Event-ID or since, with " +
				"nothing missed and nothing twice; without either it begins now. As a list it brings what came after since, or without it the newest events, " +
				"oldest first."),
		// It also needs AuditProject or AuditOrganization for the object in the query.
		handle("GET /v1/audit", "list-audit", "Who did what, newest first", (*server).listAudit).
			needs(auth.Ask).heavy().
			describe("Every change, every automatic repair and every denied request. With Accept: application/x-ndjson all that match, one JSON object per line. " +
				"Without a project or organization: those of every organization that the caller owns."),
	}},
	{"server", "The server itself.", []route{
		handle("GET /healthz", "health", "Whether the server lives", (*server).alive).admits(anybody),
		handle("GET /readyz", "ready", "Whether the server can write its store", (*server).ready).admits(anybody),
		handlePlain("GET /metrics", "metrics", "What Prometheus reads", (*server).metricsHandler).admits(anybody).serves(textContent),
		handlePlain("GET /openapi.json", "openapi", "This document", (*server).openAPIHandler).admits(anybody).serves(content{"application/openapi+json": nil}),
		handlePlain("GET /docs", "docs", "This document as a page", (*server).docsHandler).admits(anybody).serves(content{"text/html": nil}),
		handlePlain("GET /v1/agent", "agent", "Where agents connect: a WebSocket, with a join token as bearer token or a node's own key", (*server).agentHandler).
			admits(agents).describe("A node that has joined before proves itself with the header Mariposa-Node: ID:KEY and needs no join token.").answers(http.StatusSwitchingProtocols),
		handlePlain("GET /v1/manifest.schema.json", "manifest-schema", "The JSON Schema of manifests, for editors", (*server).schemaHandler).
			needs(auth.Ask).serves(content{"application/schema+json": nil}),
		handle("GET /v1/packages", "list-packages", "List the sizes that services can name", (*server).listPackages).needs(auth.Ask),
		handle("PUT /v1/packages/{package}", "put-package", "Offer a size, or change it", (*server).putPackage).
			needs(auth.RunInstallation).audits("package.put").
			describe("Versions keep the sizes as they were when they were submitted."),
		handle("DELETE /v1/packages/{package}", "delete-package", "Offer a size no longer", (*server).deletePackage).needs(auth.RunInstallation).audits("package.delete"),
		handle("GET /v1/settings", "get-settings", "What is set for the whole installation", (*server).getSettings).needs(auth.RunInstallation),
		handle("PUT /v1/settings", "put-settings", "Set what holds for the whole installation", (*server).putSettings).
			needs(auth.RunInstallation).audits("settings.put").takes(uncheckedJSON).
			describe("A number sets a limit, null removes it, and what is left out stays. The quota applies to organizations created from now on."),
		handle("POST /v1/keys/rotate", "rotate-keys", "Seal all secrets with a new key", (*server).rotateKeys).
			needs(auth.RunInstallation).audits("key.rotate").
			describe("The key file of this replica gets a new key, and the old one leaves it once nothing is sealed with it. Other replicas need a copy of the file."),
	}},
}
