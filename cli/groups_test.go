package cli

import (
	"encoding/json"
	"maps"
	"testing"

	"mariposa/contract"
)

// The output of whole groups of commands and the requests they send. Each group is
// a golden file, and a real server of its own.
func TestGroupsOfCommandsTellTheirStories(t *testing.T) {
	t.Parallel()
	for name, sc := range groups() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "group-"+name, sc.story(t, newTeamServer(t)))
		})
	}
}

const (
	groupManifest = `services:
  backend: {compute_type: dummy}
  web: {compute_type: dummy, update: {min_healthy: 0}}
`
	groupLouder = `services:
  backend: {compute_type: dummy}
  web: {compute_type: dummy, environment: {GREETING: HELLO}, update: {min_healthy: 0}}
`
	metaManifest = `services:
  backend: {compute_type: dummy, environment: {P: "{{ .meta.db_password }}", M: "{{ .meta.mode }}"}}
  web: {compute_type: dummy, environment: {L: "{{ .meta.license }}", M: "{{ .meta.mode }}"}}
metadata:
  color: {default: blue}
  db_password: {required: true, secret: true}
  license: {required: true, secret: true, description: from the vendor}
  mode: {required: true, description: how it runs}
`
	metaValues = "mode: production # as it is\ndb_password: " + planted + "\nlicense: given\n"
)

// hello makes a project of a manifest.
const hello = "! project create hello -m MANIFEST"

func groups() map[string]script {
	all := groupsOfPeople()
	maps.Copy(all, groupsOfValues())
	maps.Copy(all, groupsOfWork())
	return all
}

func groupsOfPeople() map[string]script {
	return map[string]script{
		"org": {files: map[string]string{"MANIFEST": groupManifest}, lines: []string{
			"! -o acme project create hello -m MANIFEST", "org list", "org list --json", "org create new", "org create new", "org create newer --base-role none", "org create new --base-role king", "org show acme", "-o acme org show", "org show",
			"org show nowhere", "org update acme --base-role deployer", "org update acme", "org members acme", "org add acme bob", "-o acme org add bob --role owner", "org add acme bob --role king", "org remove acme bob",
			"org add acme zoe", "org add nowhere zoe", "org remove acme zoe", "-o acme org rm bob", "org leave acme", "! org add newer bob --role owner", "org leave newer",
			"org rename acme best", "-o best org rename acme", "org delete acme", "org delete new", "org delete", "orgs list --json=false",
		}},
		"policy": {lines: []string{
			"! package set tiny --memory 100m --cpu 1", "org policy acme", "org policy acme --json", "org policy acme --compute-types docker,dummy --no-host-ports --default-package tiny",
			"org policy acme --all-compute-types --low-ports --no-default-package", "org policy acme --host-ports --no-host-ports", "org policy acme --compute-types=",
			"org policy acme --compute-types docker --all-compute-types", "org policy acme --default-package large",
		}},
		"quota": {files: map[string]string{"MANIFEST": "services:\n  web: {compute_type: dummy, scale: 3, cpu: 0.5, memory: 512m}\n"}, lines: []string{
			"! -o acme project create hello -m MANIFEST", "! org quota acme --instances 3 --memory 2g", "org quota acme", "org quota acme --json", "! org quota acme --projects 5", "org quota acme --instances 200 --cpu 1.5 --memory 64g --no-projects",
			"org quota acme --projects 3 --no-projects", "org quota acme --memory lots", "org quota acme --cpu -1", "org quota acme --instances 1.5", "org quota acme --stored-per-project 1g --no-memory",
			"! org quota acme --instances 3", "-o acme -j hello project scale web=4",
		}},
		"user": {lines: []string{
			"user list", "user show bob", "user show zoe", "user create cem --email cem@example.com --admin", "user create cem", "user create dan --json", "user update bob --admin=false", "user update bob --email b@x.org",
			"user update bob", "whoami --as bob", "user disable bob", "user list", "whoami --as bob", "user enable bob", "user password bob", "user password bob --clear", "user password zoe --clear", "user delete bob", "user delete dan", "whoami", "whoami --json",
		}},
		"token": {files: map[string]string{"MANIFEST": groupManifest}, prepare: manyTokens, lines: []string{
			"token list", "token list --user bob", "token create ci2", "token create robot --project hello --org acme --role deployer --expires 90d", "token create json --json", "token create ci --role king",
			"token create robot --user bob --org acme", "token list --user bob", "token revoke ci2", "token revoke $token0", "token revoke 0198", "token revoke nobody", "token revoke robot --user bob", "token revoke nobody --user bob",
			"token revoke mrp_TOPSECRET", "token show old", "token adopt old", "token show old", "token revoke old", "token show older", "token revoke older", "token revoke older --yes",
			"node join-token list", "node join-token --name rack-8 --uses 3 --expires 2h", "node join-token --json --name rack-9 --uses 0", "node join-token --uses -1", "node join-token revoke rack-7", "node join-token revoke nobody",
			"token revoke laptop", "token revoke laptop --yes",
		}},
		"package": {lines: []string{
			"! package set small-512m --memory 512m --cpu 0.5 --disk 10g --family small", "! package set tiny --memory 100 --cpu 1", "package list",
			"package set small --memory 512m --cpu 0.5 --disk 10g --family small", "package set small --memory 512m", "package set small --memory 512x --cpu 1", "package rm small", "package rm large",
			"key rotate", "key rotate --json",
		}},
		"people": {files: map[string]string{"MANIFEST": groupManifest}, lines: []string{
			hello, "! -o acme project create hello -m MANIFEST", "! project add-user hello bob --role deployer", "project users hello", "-j hello project people", "project add-user hello bob --role operator", "-j hello project share bob --role deployer", "project add-user hello bob",
			"project add-user hello bob --role king", "project remove-user hello bob", "-j hello project share bob --role viewer", "-j hello project unshare bob", "-j hello project unshare bob", "project remove-user hello zoe", "project add-user hello zoe --role viewer", "project add-user hallo zoe --role viewer",
			"project remove-user hallo zoe", "-o acme project remove-user hello zoe", "-o acme project users hallo", "project list --as zoe", "project show hallo --as bob",
		}},
	}
}

// manyTokens makes a project, and tokens that made others.
func manyTokens(t *testing.T, s *realServer) {
	t.Helper()
	manifest, err := json.Marshal(groupManifest)
	must(t, err)
	_, err = s.NewProject(t.Context(), contract.NewProject{Name: "hello", Organization: "acme", Manifest: manifest})
	must(t, err)
	s.clientBy(s.Client, contract.NewToken{Name: "ci", Organization: "acme", Project: "hello", Role: "deployer", Expires: "90d"})
	for _, name := range []string{"old", "older"} {
		old := s.clientBy(s.Client, contract.NewToken{Name: name})
		s.clientBy(s.clientBy(old, contract.NewToken{Name: name + "-ci"}), contract.NewToken{Name: name + "-deep", Organization: "acme"})
		if name == "older" {
			s.clientBy(old, contract.NewToken{Name: "rack-6", Use: "join", Expires: "24h"})
		}
	}
	s.clientBy(s.Client, contract.NewToken{Name: "rack-7", Use: "join", Expires: "24h", Uses: ptr(10)})
}
