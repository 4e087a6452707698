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
		// Also needs CreateProject in the organization in the request body.
		handle("POST /v1/projects", "create-project", "Create a project from a manifest", (*server).createProject).
			needs(auth.Ask).heavy().audits("project.create").takes(newProjectBody).answers(http.StatusCreated).
			describe("The request body is a manifest in YAML or JSON, with the name in the query, or a JSON document with name and manifest."),
		handle("POST /v1/plan", "plan-new-project", "Preview the creation of a project", (*server).planNewProject).
			needs(auth.Ask).heavy().takes(newProjectBody).
			describe("Takes the request body of POST /v1/projects, checks it in the same way, and shows what would be created, step by step. Nothing is stored."),
		handle("GET /v1/projects/{project}", "get-project", "Show a project", (*server).getProject).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}", "update-project", "Rename a project, submit a new manifest, or both", (*server).updateProject).
			needs(auth.Deploy).heavy().on(projectInPath).varies(byRename).audits("project.update").takes(wrappedManifest),
		handle("DELETE /v1/projects/{project}", "delete-project", "Delete a project", (*server).deleteProject).
			needs(auth.Administer).on(projectInPath).audits("project.delete").answers(http.StatusAccepted).
			describe("The name is available again immediately. The project is removed after its last instance."),
		// Also needs CreateProject in the other organization, and ReadSecrets for secrets.
		handle("POST /v1/projects/{project}/copy", "copy-project", "Create a project from the newest version of another project", (*server).copyProject).
			needs(auth.Deploy).heavy().on(projectInPath).audits("project.copy").answers(http.StatusCreated).
			describe("Only the metadata keys in the request are copied. Copying a secret requires permission to read it."),
		handle("POST /v1/projects/{project}/move", "move-project", "Move a project to another organization", (*server).moveProject).
			needs(auth.Administer).on(projectInPath).confirmed().audits("project.move").
			describe("The metadata, including secrets, moves with the project. Instances keep running. Members of the previous organization lose the roles that they had through it."),
		handle("POST /v1/projects/{project}/plan", "plan-project", "Preview changes without applying them", (*server).planProject).
			needs(auth.ReadProject).heavy().on(projectInPath).varies(byManifest).takes(optionalManifest).
			describe("With a manifest as the request body, shows what it would change; the caller must have permission to submit it. Without a body, shows what would happen now. " +
				"Steps are listed in order, assuming that each one succeeds. Plans of manifests are recorded in the audit log."),
		handle("GET /v1/projects/{project}/manifest", "get-manifest", "Get the newest manifest, byte for byte as submitted", (*server).getManifest).
			needs(auth.ReadProject).on(projectInPath).serves(yamlContent).
			describe("YAML; generated if the manifest was submitted as JSON."),
		handle("PUT /v1/projects/{project}/manifest", "put-manifest", "Submit a new manifest", (*server).putManifest).
			needs(auth.Deploy).heavy().on(projectInPath).audits("manifest.put").takes(manifestBody).
			describe("Requires previous or force, so that you do not overwrite changes that you have not seen. Submitting the same bytes again changes nothing."),
		handle("GET /v1/projects/{project}/versions", "list-versions", "List the submitted versions, newest first", (*server).listVersions).needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/versions/{version}", "get-version", "Show one version, with its manifest", (*server).getVersion).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/versions/{version}/approval", "approve-version", "Approve a version that uses protected secrets", (*server).approveVersion).
			needs(auth.Approve).on(projectInPath).confirmed().audits("version.approve").
			describe("The approval covers the exact manifest and the values that it refers to. A later version with the same manifest and values needs no new approval."),
		handle("DELETE /v1/projects/{project}/versions/{version}/approval", "withdraw-approval", "Withdraw the approval of a version", (*server).withdrawApproval).
			needs(auth.Approve).on(projectInPath).audits("version.withdraw").
			describe("Running instances keep running. The version cannot come into force again."),
		handle("POST /v1/projects/{project}/refresh", "refresh-images", "Resolve the images of a project again", (*server).refreshImages).
			needs(auth.Deploy).heavy().on(projectInPath).audits("project.refresh").answers(http.StatusAccepted).
			describe("What the name of an image means is stored with each version, so that a moved tag changes nothing. This looks the names up again. If one means another image now, a new version with the same manifest is rolled out."),
		handle("GET /v1/projects/{project}/diff", "diff-versions", "Compare two versions", (*server).diffVersions).needs(auth.ReadProject).heavy().on(projectInPath),
		handle("GET /v1/projects/{project}/tags", "list-tags", "List the tags of a project", (*server).listTags).needs(auth.ReadProject).on(projectInPath),
		handle("POST /v1/projects/{project}/tags", "create-tag", "Tag a version, or move an existing tag to it", (*server).createTag).
			needs(auth.Deploy).on(projectInPath).audits("tag.create").answers(http.StatusCreated).
			describe("Tagged versions are never deleted automatically."),
		handle("GET /v1/projects/{project}/tags/{tag}", "get-tag", "Show a tag", (*server).getTag).needs(auth.ReadProject).on(projectInPath),
		handle("DELETE /v1/projects/{project}/tags/{tag}", "delete-tag", "Delete a tag", (*server).deleteTag).needs(auth.Deploy).on(projectInPath).audits("tag.delete"),
		handle("GET /v1/discovery", "discover", "List running instances for Prometheus", (*server).discover).
			needs(auth.Ask).heavy().describe("The answer is in the form of Prometheus' HTTP service discovery (http_sd). It contains all instances with ports that the caller can see."),
		handle("GET /v1/services", "list-all-services", "List services across projects", (*server).listAllServices).needs(auth.Ask),
		handle("GET /v1/projects/{project}/services", "list-services", "List the services of a project", (*server).listServices).needs(auth.ReadProject).on(projectInPath),
		handle("POST /v1/projects/{project}/services", "create-service", "Add a service to a project's manifest", (*server).addService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.create").takes(manifestBody).answers(http.StatusCreated).
			describe("The request body is the definition of the service in YAML or JSON, with its name in the query or in the key name. Creates a new version."),
		handle("GET /v1/projects/{project}/services/{service}", "get-service", "Show a service", (*server).getService).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/services/{service}", "put-service", "Replace a service's definition in a project's manifest", (*server).putService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.put").takes(manifestBody).
			describe("Creates a new version. All other lines of the manifest remain unchanged."),
		handle("DELETE /v1/projects/{project}/services/{service}", "delete-service", "Remove a service from a project's manifest", (*server).deleteService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.delete").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/services/{service}/manifest", "get-service-manifest", "Get a service's definition in the newest manifest, as YAML", (*server).getServiceManifest).
			needs(auth.ReadProject).on(projectInPath).serves(yamlContent),
		handle("PUT /v1/projects/{project}/services/{service}/manifest", "put-service-manifest", "Replace a service's definition (same as PUT on the service)", (*server).putService).
			needs(auth.Deploy).heavy().on(projectInPath).audits("service.put").takes(manifestBody),
	}},
	{"metadata", "Values and secrets that manifests refer to.", []route{
		handle("GET /v1/projects/{project}/metadata", "get-metadata", "Get a project's metadata", (*server).getMetadata).
			needs(auth.ReadProject).heavy().on(projectInPath).varies(byReveal).confirmedToReveal().
			describe("YAML as submitted, with secrets masked. With Accept: application/json, a list that includes the declaration of each key in the manifest."),
		handle("PUT /v1/projects/{project}/metadata", "put-metadata", "Replace a project's metadata", (*server).putMetadata).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.put").takes(metadataBody).
			describe("A YAML mapping of keys to strings, numbers and booleans. A masked secret keeps its current value."),
		handle("GET /v1/projects/{project}/metadata/{key}", "get-metadata-key", "Get a metadata value", (*server).getKey).needs(auth.ReadProject).heavy().on(projectInPath).varies(byReveal).confirmedToReveal(),
		handle("PUT /v1/projects/{project}/metadata/{key}", "put-metadata-key", "Set a metadata value", (*server).putKey).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.set").takes(metadataValueBody).
			describe(`The value as plain text, or as JSON: {"value": …, "secret": true}.`),
		handle("DELETE /v1/projects/{project}/metadata/{key}", "delete-metadata-key", "Delete a metadata value", (*server).deleteKey).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.delete"),
		handle("POST /v1/projects/{project}/metadata/{key}/incr", "increment-metadata-key", "Increment a metadata value", (*server).increment).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.incr"),
		handle("POST /v1/projects/{project}/metadata/{key}/decr", "decrement-metadata-key", "Decrement a metadata value", (*server).decrement).
			needs(auth.Deploy).heavy().on(projectInPath).audits("metadata.decr"),
	}},
	{"people", "Users, organizations, roles, tokens and quotas.", []route{
		handle("GET /v1/projects/{project}/users", "list-project-users", "List the users of a project and their roles", (*server).listProjectUsers).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/users/{user}", "put-project-user", "Set the role of a user in a project", (*server).putProjectUser).
			needs(auth.ManagePeople).on(projectInPath).confirmed().audits("people.put"),
		handle("DELETE /v1/projects/{project}/users/{user}", "remove-project-user", "Remove the role of a user in a project", (*server).removeProjectUser).
			needs(auth.ManagePeople).on(projectInPath).audits("people.remove"),
		handle("GET /v1/user", "whoami", "Show the caller's user and token", (*server).whoami).needs(auth.Ask),
		handle("PUT /v1/password", "put-password", "Set the caller's password for the web page", (*server).setPassword).
			needs(auth.Ask).audits("password.put").
			describe("An installation admin sets the first password of a user, with /v1/users/{user}/password. All other sessions of the user end."),
		handle("DELETE /v1/password", "delete-password", "Remove the password of a user", (*server).removePassword).
			needs(auth.Ask).audits("password.delete").
			describe("Only for installation admins, with /v1/users/{user}/password. All other sessions of the user end. Tokens stay valid."),
		handle("POST /v1/sessions", "sign-in", "Sign in to the web page", (*server).signIn).
			admits(anybody).audits("session.create").answers(http.StatusCreated).
			describe("With user and password, a token, or the secret of a sign-in link. The response sets a cookie that authenticates requests of the page, for up to 7 days. Programs use tokens instead."),
		handle("GET /v1/sign-in", "get-sign-in", "List the ways to sign in to the web page", (*server).getSignIn).admits(anybody),
		handlePlain("GET /v1/oidc/sign-in", "begin-oidc", "Send a browser to the identity provider (OpenID Connect)", (*server).beginProviderSignIn).
			admits(anybody).serves(content{"text/html": nil}).
			describe("Browsers come back to the path in return, with a session. With again=true, the provider asks who it is, even if it knows."),
		handlePlain("GET /v1/oidc/callback", "end-oidc", "Sign in a browser that the identity provider sent back", (*server).endProviderSignIn).
			admits(anybody).serves(content{"text/html": nil}),
		handle("POST /v1/session/proof", "confirm-session", "Confirm that it is still you at the web page", (*server).confirmSession).
			needs(auth.Ask).audits("session.confirm").
			describe("Only for requests of the page, with the password or a token of the user. For 10 minutes after that, or after a sign-in other than by a link, the page can reveal and copy " +
				"secrets, run commands inside instances, move projects, create tokens and users, give roles, approve versions, accept nodes, and download a backup. Otherwise these requests are refused with the code ReauthenticationRequired. Programs with a token are governed by their roles alone."),
		handle("DELETE /v1/session", "sign-out", "Sign out of the web page", (*server).signOut).
			needs(auth.Ask).audits("session.delete").
			describe("Only for requests of the page. Tokens that the person created there for themselves stay valid."),
		handle("GET /v1/users", "list-users", "List the users that the caller can see", (*server).listUsers).needs(auth.Ask),
		handle("POST /v1/users", "create-user", "Create a user with a personal organization", (*server).createUser).
			needs(auth.RunInstallation).confirmed().audits("user.create").answers(http.StatusCreated),
		handle("GET /v1/users/{user}", "get-user", "Show a user", (*server).getUser).needs(auth.Ask),
		handle("PUT /v1/users/{user}", "update-user", "Update a user", (*server).updateUser).needs(auth.RunInstallation).confirmed().audits("user.update"),
		handle("DELETE /v1/users/{user}", "delete-user", "Delete a user", (*server).deleteUser).
			needs(auth.RunInstallation).audits("user.delete").
			describe("The user's tokens stop working, and the user is removed from every organization and project. Transfer or delete everything that the user owns first."),
		handle("GET /v1/organizations", "list-organizations", "List the caller's organizations", (*server).listOrganizations).needs(auth.Ask),
		handle("POST /v1/organizations", "create-organization", "Create an organization owned by the caller", (*server).createOrganization).
			needs(auth.Ask).audits("organization.create").answers(http.StatusCreated),
		handle("GET /v1/organizations/{organization}", "get-organization", "Show an organization", (*server).getOrganization).needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}", "update-organization", "Update an organization", (*server).updateOrganization).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("organization.update"),
		handle("DELETE /v1/organizations/{organization}", "delete-organization", "Delete an organization that has no projects", (*server).deleteOrganization).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("organization.delete"),
		handle("GET /v1/organizations/{organization}/members", "list-members", "List the members of an organization", (*server).listMembers).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/members/{user}", "put-member", "Add a user to an organization, or change their role", (*server).putMember).
			needs(auth.AdministerOrganization).on(organizationInPath).confirmed().audits("member.put"),
		// Also needs AdministerOrganization, unless callers remove themselves.
		handle("DELETE /v1/organizations/{organization}/members/{user}", "remove-member", "Remove a user from an organization, or leave it", (*server).removeMember).
			needs(auth.ReadOrganization).on(organizationInPath).audits("member.remove"),
		handle("GET /v1/organizations/{organization}/quota", "get-quota", "Show the quota of an organization and its usage", (*server).getQuota).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/quota", "put-quota", "Set the quota of an organization", (*server).putQuota).
			needs(auth.RunInstallation).audits("quota.put").takes(uncheckedJSON).
			describe("A number sets a limit and null removes it. Omitted limits remain unchanged. Resources already in use are kept, even above the limit."),
		handle("GET /v1/organizations/{organization}/policy", "get-policy", "Show the policy of an organization: what its manifests can use", (*server).getPolicy).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/policy", "put-policy", "Change the policy of an organization", (*server).putPolicy).
			needs(auth.RunInstallation).audits("policy.put").
			describe("Omitted fields remain unchanged. Versions are checked when they are submitted and when they are restored. Running instances are not affected."),
		handle("GET /v1/organizations/{organization}/registries", "list-registries", "List the logins of an organization to registries of images", (*server).listRegistries).
			needs(auth.ReadOrganization).on(organizationInPath),
		handle("PUT /v1/organizations/{organization}/registries/{registry}", "put-registry", "Set the login of an organization to a registry of images", (*server).putRegistry).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("registry.put").
			describe("Nodes that fetch images of the organization from this registry use the login. The password is stored encrypted, and no response contains it."),
		handle("DELETE /v1/organizations/{organization}/registries/{registry}", "delete-registry", "Remove the login of an organization to a registry", (*server).deleteRegistry).
			needs(auth.AdministerOrganization).on(organizationInPath).audits("registry.delete"),
		// Join tokens also need RunInstallation.
		handle("GET /v1/tokens", "list-tokens", "List the caller's tokens, or the join tokens", (*server).listTokens).needs(auth.Ask),
		handle("POST /v1/tokens", "create-token", "Create a token", (*server).createToken).
			needs(auth.Ask).confirmed().audits("token.create").answers(http.StatusCreated).
			describe("The response contains the token, which is never shown again. The token grants the rights of its user within its restrictions and ends with the token that created it. " +
				"Only installation admins can create join tokens."),
		// Tokens of other users also need RunInstallation.
		handle("GET /v1/tokens/{token}", "get-token", "Show a token and the tokens that it created", (*server).getToken).needs(auth.Ask),
		handle("DELETE /v1/tokens/{token}", "revoke-token", "Revoke a token", (*server).revokeToken).
			needs(auth.Ask).audits("token.revoke").
			describe("The tokens that it created are revoked at the same time. Revoking a token that created others requires cascade=true."),
		handle("PUT /v1/tokens/{token}", "act-on-token", "Adopt the tokens that a token created", (*server).actOnToken).
			needs(auth.RunInstallation).audits("token.adopt").
			describe("The token of this request becomes the parent of the tokens that it created, so they stay valid when it is revoked."),
	}},
	{"state", "Desired and actual state, and actions that change the desired state.", []route{
		handle("GET /v1/state", "get-state", "Get the desired and actual state of projects", (*server).getState).needs(auth.Ask),
		handle("GET /v1/projects/{project}/state", "get-project-state", "Get the desired and actual state of a project", (*server).getProjectState).needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/state", "act-on-project", "Change the desired state of a project", (*server).actOnProject).
			needs(auth.Operate).on(projectInPath).varies(byAction).audits("state.put").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/services/{service}/state", "get-service-state", "Get the desired and actual state of a service", (*server).getServiceState).
			needs(auth.ReadProject).on(projectInPath),
		handle("PUT /v1/projects/{project}/services/{service}/state", "act-on-service", "Change the desired state of a service", (*server).actOnService).
			needs(auth.Operate).on(projectInPath).varies(byAction).audits("state.put").answers(http.StatusAccepted),
		handle("GET /v1/projects/{project}/healthchecks", "get-healthchecks", "List the health checks of a project's services and their results", (*server).getHealthChecks).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/services/{service}/healthchecks", "get-service-healthchecks", "List the health checks of a service and their results", (*server).getServiceHealthChecks).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/balancers", "get-balancers", "List the load balancers of a project with their members", (*server).getBalancers).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/projects/{project}/names", "get-names", "List the DNS names of a project's services and what they resolve to", (*server).getNames).
			needs(auth.ReadProject).on(projectInPath),
		handle("GET /v1/balancers", "list-balancers", "List load balancers with their members", (*server).listBalancers).needs(auth.Ask).
			describe("The counters of at most 100 balancers are read; they are null for others."),
		handle("GET /v1/projects/{project}/graph", "get-graph", "Get a project as a graph: its resources, their status and dependencies", (*server).getGraph).
			needs(auth.ReadProject).on(projectInPath).
			describe("Includes the resources of the version in force and leftovers of earlier versions."),
		handle("GET /v1/projects/{project}/history", "get-project-history", "Show how the services of a project fared during the last hours", (*server).getProjectHistory).
			needs(auth.ReadProject).on(projectInPath).
			describe("Each replica remembers up to 6 hours, in memory: intervals from before it was started are null."),
	}},
	{"queue", "Tasks that carry out changes.", []route{
		handle("GET /v1/queue", "list-tasks", "List tasks, newest first", (*server).listTasks).needs(auth.Ask),
		handle("GET /v1/queue/{task}", "get-task", "Show a task with its steps", (*server).getTask).needs(auth.ReadProject).on(taskInPath),
		handle("DELETE /v1/queue/{task}", "terminate-task", "Terminate a task", (*server).terminateTask).
			needs(auth.Operate).on(taskInPath).audits("task.terminate").answers(http.StatusAccepted).
			describe("If the task is active, no further step starts, half-created instances are completed or removed, and the scope of the task is frozen. The desired state remains, so a thaw " +
				"continues the change. If the task is queued, its change is dropped and nothing is frozen."),
	}},
	{"instances", "Running containers, virtual machines and processes.", []route{
		handle("GET /v1/instances", "list-instances", "List instances", (*server).listInstances).needs(auth.Ask),
		// Also needs ManageInstances in the project in the request body.
		handle("POST /v1/instances", "create-instance", "Create an unmanaged instance", (*server).createInstance).
			needs(auth.Ask).audits("instance.create").takes(definitionBody).answers(http.StatusCreated).
			describe("The request body contains the project and the definition, with the same keys as a service in a manifest. Mariposa does not repair, replace or update the instance; it runs until " +
				"it exits or is deleted."),
		handle("GET /v1/instances/{instance}", "get-instance", "Show an instance, with its environment and details", (*server).getInstance).needs(auth.ReadProject).on(instanceInPath),
		handle("PUT /v1/instances/{instance}", "act-on-instance", "Start, stop, restart, replace or crash an instance", (*server).actOnInstance).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.act").answers(http.StatusAccepted).
			describe("Crash works only for dummy instances, for tests and demonstrations."),
		handle("DELETE /v1/instances/{instance}", "delete-instance", "Delete an unmanaged instance, or kill an instance that is stopping", (*server).deleteInstance).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.delete"),
		handle("GET /v1/instances/{instance}/logs", "get-logs", "Stream the log of an instance as text", (*server).getLogs).
			needs(auth.ReadProject).on(instanceInPath).varies(byReveal).confirmedToReveal().serves(content{"text/plain": nil, "text/event-stream": reflect.TypeFor[contract.LogLine]()}).
			describe("With Accept: text/event-stream, the lines are events with an id. After a disconnect, the stream continues at any replica after the Last-Event-ID, without " +
				"missing or repeated lines. The event end says that the log is complete, gap that lines were deleted in between, and error why the server ends the stream."),
		handle("GET /v1/instances/{instance}/exec", "exec", "Run a command inside an instance over a WebSocket", (*server).exec).
			needs(auth.Shell).on(instanceInPath).audits("instance.exec").answers(http.StatusSwitchingProtocols).
			describe("All messages are binary. The first byte is the type: 0 stdin (empty: end of input), 1 stdout, 2 stderr, 3 the command ended " +
				`({"exit_code": N}, or an error), 4 terminal size ({"rows": N, "cols": N}), 5 signal ({"signal": "TERM"}). The command is terminated when the ` +
				"connection closes. With console=true, input and output are those of the instance's serial console."),
		handle("GET /v1/instances/{instance}/snapshots", "list-snapshots", "List the snapshots of an instance", (*server).listSnapshots).needs(auth.ReadProject).on(instanceInPath),
		handle("POST /v1/instances/{instance}/snapshots", "create-snapshot", "Save the state of an instance", (*server).createSnapshot).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.snapshot").answers(http.StatusAccepted).
			describe("Only virtual machines have snapshots. A snapshot of a running instance contains its memory. The request waits up to 20 seconds; a snapshot that takes longer is " +
				"in the list with the state creating, then ready or failed."),
		handle("POST /v1/instances/{instance}/snapshots/{snapshot}/restore", "restore-snapshot", "Return an instance to a snapshot", (*server).restoreSnapshot).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.restore").answers(http.StatusAccepted).
			describe("The current state of the instance is lost. A snapshot with memory needs a running instance, one without memory a stopped instance."),
		handle("DELETE /v1/instances/{instance}/snapshots/{snapshot}", "delete-snapshot", "Delete a snapshot", (*server).deleteSnapshot).
			needs(auth.ManageInstances).on(instanceInPath).audits("instance.snapshot_delete").answers(http.StatusAccepted),
	}},
	{"volumes", "Storage that outlives instances.", []route{
		handle("GET /v1/volumes", "list-volumes", "List volumes", (*server).listVolumes).needs(auth.Ask),
		handle("GET /v1/volumes/{volume}", "get-volume", "Show a volume", (*server).getVolume).needs(auth.ReadVolume).on(volumeInPath),
		handle("DELETE /v1/volumes/{volume}", "delete-volume", "Delete a volume and its data", (*server).deleteVolume).
			needs(auth.DeleteVolume).on(volumeInPath).audits("volume.delete").answers(http.StatusAccepted).
			describe("Rejected while an instance uses the volume or is about to be created with it. The node deletes the volume as soon as it is reachable."),
		// Also needs AttachVolume on the project in the request body.
		handle("POST /v1/volumes/{volume}/attach", "attach-volume", "Attach a volume of a deleted project to another project", (*server).attachVolume).
			needs(auth.AttachVolume).on(volumeInPath).audits("volume.attach").
			describe("The manifest of the project must have a service that uses a volume of that name, and the slot must not have one yet, nor be about to start. " +
				"Instances of the slot then start on the node of the volume, with its data."),
	}},
	{"networks", "Networks that connect instances.", []route{
		handle("GET /v1/networks", "list-networks", "List networks", (*server).listNetworks).needs(auth.Ask),
		handle("GET /v1/networks/{network}", "get-network", "Show a network with its state on each node", (*server).getNetwork).needs(auth.ReadNetwork).on(networkInPath),
		handle("DELETE /v1/networks/{network}", "delete-network", "Delete a network", (*server).deleteNetwork).
			needs(auth.DeleteNetwork).on(networkInPath).audits("network.delete").answers(http.StatusAccepted).
			describe("Rejected while an instance uses the network or is about to be created on it. A network is deleted automatically when no manifest refers to it any more."),
	}},
	{"nodes", "Machines that run instances.", []route{
		handle("GET /v1/nodes", "list-nodes", "List nodes, sorted by name", (*server).listNodes).needs(auth.RunInstallation),
		handle("GET /v1/nodes/{node}", "get-node", "Show a node", (*server).getNode).needs(auth.RunInstallation),
		handle("GET /v1/nodes/{node}/history", "get-node-history", "Show how full a node was during the last hours", (*server).getNodeHistory).needs(auth.RunInstallation).
			describe("Each replica remembers up to 6 hours, in memory: intervals from before it was started are null."),
		handle("PUT /v1/nodes/{node}", "act-on-node", "Drain, reserve, purge, adopt, approve or reject a node", (*server).actOnNode).
			needs(auth.RunInstallation).audits("node.act").
			describe("Drain moves all instances to other nodes, within the limits of their services, and keeps new ones away; the answer names the task. Undrain lets the node take " +
				"instances again; nothing is moved back. Reserve keeps new instances away and leaves the others. Reschedule-now replaces the instances of a node that is unknown " +
				"without further waiting. Purge removes quarantined instances. Adopt takes them back into the slots that they came from, without a restart, if their " +
				"service and version are still in force and a server has signed where they came from. Lose and restore simulate a failure of a dummy node, for tests and demonstrations."),
		handle("DELETE /v1/nodes/{node}", "delete-node", "Remove a node", (*server).deleteNode).
			needs(auth.RunInstallation).audits("node.delete").
			describe("The node must have the status unknown. If instances are assigned to it or volumes are on it, force is required, and they are removed too. The instances " +
				"are recreated on other nodes, with empty volumes. If the node returns, the instances that still run on it are quarantined, and the directories of its " +
				"volumes are not touched."),
	}},
	{"foreign", "Containers on nodes that Mariposa did not create. It never touches them unless they are adopted.", []route{
		handle("GET /v1/foreign", "list-all-foreign", "List the foreign containers of all nodes", (*server).listForeign).
			needs(auth.RunInstallation).heavy().
			describe("Nodes that do not answer in time are in the list missing."),
		handle("GET /v1/nodes/{node}/foreign", "list-foreign", "List the foreign containers of a node", (*server).listForeignOn).needs(auth.RunInstallation),
		handle("POST /v1/nodes/{node}/foreign/{container}/adopt", "adopt-container", "Make a foreign container an unmanaged instance of a project", (*server).adoptContainer).
			needs(auth.RunInstallation).audits("instance.adopt").answers(http.StatusCreated).
			describe("The container is not restarted and keeps its configuration. It counts for the quota of the project with its own limits. Deleting the instance removes the container, but not its volumes."),
	}},
	{"events", "The feed of changes and the audit log.", []route{
		handle("GET /v1/events", "list-events", "List events, or stream them live", (*server).events).
			needs(auth.Ask).heavy().serves(content{"application/json": reflect.TypeFor[contract.Events](), "text/event-stream": reflect.TypeFor[contract.Event]()}).
			describe("With Accept: text/event-stream, a live stream whose ids are revisions. After a disconnect it resumes at Last-Event-ID or since, without " +
				"gaps or duplicates; without either it starts now. As a list, the events after since, or else the newest events, " +
				"oldest first. With states, a stream also has the states of projects, as GET /v1/state shows them: first of those that changed after since, " +
				"then of each that changes, several times a second at most. With instances, it also has the instances of a project after they have changed, as event instances: " +
				"each with its id and all that changes while it runs, and with its name, slot, node and so on if these are new. Then Last-Event-ID may bring some of them again."),
		// Also needs AuditProject or AuditOrganization for the object in the query.
		handle("GET /v1/audit", "list-audit", "List audit records, newest first", (*server).listAudit).
			needs(auth.Ask).heavy().
			describe("Includes every change, automatic repair and denied request. With Accept: application/x-ndjson, returns all matching records, one JSON object per line. " +
				"Without a project or organization, returns the records of all organizations that the caller owns."),
	}},
	{"server", "The server itself.", []route{
		handle("GET /healthz", "health", "Check that the server is running", (*server).alive).admits(anybody),
		handle("GET /readyz", "ready", "Check that the server can write to its store", (*server).ready).admits(anybody),
		handlePlain("GET /metrics", "metrics", "Metrics for Prometheus", (*server).metricsHandler).admits(anybody).serves(textContent),
		handlePlain("GET /openapi.json", "openapi", "This document", (*server).openAPIHandler).admits(anybody).serves(content{"application/openapi+json": nil}),
		handlePlain("GET /docs", "docs", "This document as a web page", (*server).docsHandler).admits(anybody).serves(content{"text/html": nil}),
		handlePlain("GET /v1/agent", "agent", "WebSocket for agents, authenticated by a join token or the node's key", (*server).agentHandler).
			admits(agents).describe("Send a join token as bearer token. A node that has joined before sends the header Mariposa-Node: ID:KEY instead, a second time with its former key if its key was rotated. " +
			"A new node that sends only this header becomes pending, if the server allows that, and is disconnected.").answers(http.StatusSwitchingProtocols),
		handle("GET /v1/replicas", "list-replicas", "List the replicas of the server that are alive", (*server).listReplicas).needs(auth.RunInstallation),
		handlePlain("GET /v1/replica", "replica", "WebSocket for the other replicas of the server, which prove that they have its key file", (*server).replicaHandler).
			admits(replicas).describe("Replicas forward requests about a node to the replica that the node is connected to.").answers(http.StatusSwitchingProtocols),
		handlePlain("GET /v1/manifest.schema.json", "manifest-schema", "JSON Schema of manifests, for editors", (*server).schemaHandler).
			needs(auth.Ask).serves(content{"application/schema+json": nil}),
		handle("GET /v1/packages", "list-packages", "List packages: named sizes for services", (*server).listPackages).needs(auth.Ask),
		handle("PUT /v1/packages/{package}", "put-package", "Create or update a package", (*server).putPackage).
			needs(auth.RunInstallation).audits("package.put").
			describe("Existing versions keep the size that the package had when they were submitted."),
		handle("DELETE /v1/packages/{package}", "delete-package", "Delete a package", (*server).deletePackage).needs(auth.RunInstallation).audits("package.delete"),
		handle("GET /v1/settings", "get-settings", "Show the settings of the installation", (*server).getSettings).needs(auth.RunInstallation),
		handle("PUT /v1/settings", "put-settings", "Change the settings of the installation", (*server).putSettings).
			needs(auth.RunInstallation).audits("settings.put").takes(uncheckedJSON).
			describe("A number sets a limit and null removes it. Omitted settings remain unchanged. The quota applies to organizations created from now on."),
		handle("GET /v1/backup", "get-backup", "Download a backup of the whole store", (*server).backup).
			needs(auth.RunInstallation).confirmed().serves(content{"application/octet-stream": nil}).
			describe("A consistent copy of everything in the store, for `mariposa restore`. Secrets in it are encrypted; the key file is not part of it. " +
				"A backup without its last part was cut off, and is refused by a restore. A server makes one at a time. Recorded in the audit log as backup.read."),
		handle("POST /v1/keys/rotate", "rotate-keys", "Rotate the key that encrypts all secrets", (*server).rotateKeys).
			needs(auth.RunInstallation).audits("key.rotate").
			describe("Adds a new key to the key file of this replica. The old key is removed when nothing is encrypted with it any more. Copy the file to all other replicas."),
	}},
}
