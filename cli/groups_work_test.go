package cli

import "fmt"

const (
	storingManifest = `services:
  db: {compute_type: dummy, scale: 2, volumes: ["data:/data"]}
volumes: {data: {size: 1g}}
`
	formerManifest = `services:
  log: {compute_type: dummy, scale: 2, volumes: ["data:/data"]}
volumes: {data: {}}
`
	networkManifest = `services:
  web: {compute_type: dummy, scale: 2, networks: [backend, common]}
networks: {backend: {}, common: {shared: true}}
`
	commonManifest = `services:
  web: {compute_type: dummy, networks: [backend, common], scale: 1}
networks: {backend: {}, common: {shared: true}}
`
	// slowManifest takes an hour to start more than one web.
	slowManifest = `services:
  backend: {compute_type: dummy}
  web: {compute_type: dummy, dummy: {wait_secs: 3600}}
`
	planManifest = `services:
  backend: {compute_type: dummy}
  cache: {compute_type: dummy, environment: {WEB: "{{ .services.web.id }}"}, update: {min_healthy: 0}}
  db: {compute_type: dummy, scale: 2, environment: {P: "{{ .meta.db_password }}"}}
  web: {compute_type: dummy, scale: 3, environment: {GREETING: "good\\e[2J morning"}, ports: [8080], update: {min_healthy: 0}}
metadata: {db_password: {required: true, secret: true}}
`
	plannedManifest = `services:
  backend: {compute_type: dummy}
  cache: {compute_type: dummy, environment: {WEB: "{{ .services.web.id }}"}, update: {min_healthy: 0}}
  old: {compute_type: dummy}
  web: {compute_type: dummy, scale: 2, environment: {GREETING: hello}, memory: 1g, update: {min_healthy: 0}}
`
)

// lost waits until node2 is lost.
const lost = `~ /v1/nodes/node2 "status": ?"unknown"`

// groupsOfValues are about what projects have: versions and metadata.
func groupsOfValues() map[string]script {
	meta := map[string]string{"MANIFEST": metaManifest, "VALUES": metaValues, "CERT": "line 1\nline 2\x1b[2J\n"}
	importing := func(file string, lines ...string) script {
		return script{files: map[string]string{"MANIFEST": metaManifest, "VALUES": metaValues, "FILE": file}, lines: append([]string{hello + " --metadata VALUES"}, lines...)}
	}
	return map[string]script{
		"history": {files: map[string]string{"MANIFEST": groupManifest, "LOUDER": groupLouder}, lines: []string{
			hello, rolledOut(1),
			"! -j hello meta set mode test", rolledOut(2),
			"! -j hello meta set db_password --secret=true " + planted, rolledOut(3),
			"! -j hello meta set gone x", rolledOut(4),
			"! project update hello -m LOUDER --force --message louder", rolledOut(5),
			"! -j hello meta set mode production", rolledOut(6),
			"! -j hello meta set color blue\x1b[2J", rolledOut(7),
			"! -j hello meta set db_password other-" + planted, rolledOut(8),
			"! -j hello meta rm gone", rolledOut(9),
			"! -j hello project tag add loud 5", "-j hello project history", "-j hello project version diff 4 9", "-j hello project version diff 5", "-j hello project version diff 4 9 --json",
			"-j hello project version diff 9 9", "project tag list hello", "-j hello project tag add good 2", "project tag add hello good 2", "-j hello project tag rm loud", "-j hello project tag rm quiet",
		}},
		"revert": {files: map[string]string{"MANIFEST": groupManifest, "LOUDER": groupLouder}, lines: []string{
			hello, "! -j hello project scale web=4", "! project update hello -m LOUDER --force", "-j hello project revert", "-j hello project revert 2 --rolling 25% --message back", "-j hello project revert 1 --canary 2 --with-scale", "-j hello project revert --canary x", "project revert hello 1",
			"project revert hello 1", "project revert hello 2 --json", "project revert hello 1 --rolling many", "project revert hello 99",
		}},
		"copy": {files: map[string]string{"MANIFEST": metaManifest, "VALUES": metaValues}, lines: []string{
			hello + " --metadata VALUES", "! org create beta", "project copy hello again", "-j hello project copy again --meta mode --meta db_password --to-org beta", "-j hello project copy again --json", "-j hello project copy third --json",
			"project move hello beta", "-j hello project rename howdy", "-j howdy -o ann project rename hello --json", "-o acme project rename hallo howdy", "project rename", "project rename hello howdy", "project move howdy beta --yes",
			"-j third project transfer beta -y --json", "project move howdy beta --yes",
		}},
		"meta": {files: meta, lines: []string{
			hello + " --metadata VALUES", "! -j hello meta rm license", "-j hello meta list", "meta list", "-j hello meta list --json", "-j hello meta get mode", "-j hello meta get color", "-j hello meta get license", "-j hello meta get nothing", "-j hello meta get db_password",
			"-j hello meta get db_password --json", "-j hello meta get db_password --reveal", "! -j hello meta set cert --from-file CERT", "-j hello meta get cert", "-j hello meta set mode test", "-j hello meta set mode try 7", "-j hello meta set mode try $cas0", "-j hello meta set mode test --cas $cas0 --json",
			"-j hello meta set mode=test color=red", "-j hello meta set mode", "-j hello meta rm mode 7", "-j hello meta rm mode $cas0", "! -j hello meta set mode test", "-j hello meta rm mode", "-j hello meta rm mode", "-j hello meta incr build", "-j hello meta incr build 41", "-j hello meta decr build 5", "-j hello meta incr build 0",
			"-j hello meta incr build --json", "-j hello meta incr color", "-j hello meta export", "-j hello meta export --reveal", "-j hello meta export --json",
		}},
		"import": importing("mode: test\ndb_password: ••••\nfresh: x\n",
			"-j hello meta import -m FILE", "-j hello meta import -m FILE", "-j hello meta import -m FILE -f --message all", "! -j hello meta rm fresh", "! -j hello meta set mode production",
			"-j hello meta import -m FILE --json", "-j hello meta import -m FILE -f --json", "-j hello meta import"),
		"import-adds":  importing("mode: production\ndb_password: ••••\nfresh: x\n", "-j hello meta import -m FILE"),
		"import-lacks": importing("db_password: given-anew\n", "-j hello meta import -m FILE", "! -o acme project create hello -m MANIFEST --metadata VALUES", "-j hello -o acme meta import -m FILE --json"),
		"audit": {files: map[string]string{"MANIFEST": groupManifest, "LOUDER": groupLouder, "FAULTY": "services: {web: {scal: 3}}"}, lines: []string{
			"! -o acme project create hello -m MANIFEST", "! -o acme -j hello project update -m LOUDER --force --message louder", "-o acme --as bob -j hello project update -m LOUDER --force", "-o acme -j hello project update -m FAULTY --force",
			"events --audit", "-o acme -j hello events --audit --actor ann --action manifest. --outcome denied --since 7d --limit 2", "-o acme events --audit -A", "-o acme events --audit -A --limit 1", "events --audit --until 2026-03-01T12:00:00Z", "events --audit --outcome odd",
			"events --audit --since yesterday", "events --audit -f", "events --actor ann", "events --audit --limit -1",
		}},
	}
}

// rolledOut waits until a version of the project hello is completed. One that changes no
// instance has no task to wait for.
func rolledOut(version int) string {
	return fmt.Sprintf(`~ /v1/projects/hello/versions/%d "completed": ?true`, version)
}

// groupsOfWork are about what runs, and what nodes keep for it.
func groupsOfWork() map[string]script {
	return map[string]script{
		"volume": {files: map[string]string{"MANIFEST": storingManifest, "FORMER": formerManifest}, lines: []string{
			hello, "! project create former -m FORMER", "! project delete former -f --yes --wait", "! node lose node2", lost, `~ /v1/volumes "state": ?"unknown"`, "volume list", "volume list --json",
			"-j hello volume list --service db --node node1", "-o acme volume list -A", "volume show db.1:data", "-j hello volume show $volume0", "volume show db.3:data", "volume show nothing",
			"volume rm db.1:data", "volume rm $volume3", "volume rm $volume2 --json", "~ /v1/volumes !log.1", "volumes delete nothing -y", "volume list", "project delete hello --volumes -f --yes",
		}},
		"network": {files: map[string]string{"MANIFEST": networkManifest, "COMMON": commonManifest}, lines: []string{
			hello, "! project create shop -m COMMON", "! node lose node2", lost, `~ /v1/networks "state": ?"unknown"`, "network list", "network list --json", "-j hello network list", "network show common", "network show $network0", "network show nothing", "network show backend",
			"network rm common", "network rm $network0", "! project stop shop", "network rm $network2 --json", "networks delete nothing -y", "network rm --help",
		}},
		"orders": {files: map[string]string{"MANIFEST": groupManifest, "LOUDER": groupLouder}, lines: []string{
			hello, "! -j hello project scale web=2", "! project update hello -m LOUDER --force --canary 1", "project start hello --service web --service backend", "project start hello --version 1 --rolling 2 --canary 10%", "-j hello project stop --service web,backend", "project start hello --service web --service backend",
			"project stop hello --version 1", "-j hello project reprovision --service web --version 2 --image shop/web:1 --instance web.1 --node node1,node2 --count 25% --rolling 2", "-j hello project reprovision --service web --instance web.1 --instance web.2 --count 25% --rolling 2", "-j hello project reprovision --count 1",
			"project reprovision hello --instance web.9", "project freeze hello", "-j hello project scale web=+2", "project thaw hello --service web", "project thaw hello", "project freeze hello --service web", "project thaw hello --service web", "-j hello project pause", "-j hello project resume", "-j hello project resume",
			"-j hello project converge --service web", "-j hello project accept", "-j hello queue freeze --json", "queue thaw hello", "project freeze hallo", "-j hello project scale web=+2 backend=-1", "-j hello project scale web=+2 backend=-1",
		}},
		"queue": {stuck: true, files: map[string]string{"MANIFEST": groupManifest, "SLOW": slowManifest}, lines: []string{
			hello + " --wait", "! project create slow -m SLOW", `~ /v1/instances?project=slow "state": ?"provisioning"`, `~ /v1/queue?project=slow "done": ?1`, "queue list --all --state completed --service web --limit 5", "queue list --limit 0 --json", "queue list", "queue show 0198c000-0000-7000", "queue show $task0 --limit 1", "queue show $task0",
			"queue show 0198c000-0000-7000-8000-0000000000b9", "queue terminate beef", "queue terminate 0198c000-0000-7000-8000-0000000000b9", "queue terminate $task1", "queue terminate $task0", `~ /v1/queue?project=slow "task": ?"freeze".*"done": ?1`, "queue list", "queue terminate $task0 --json",
		}},
		"plan": {files: map[string]string{"MANIFEST": plannedManifest, "FILE": planManifest, "FAULTY": "services:\n  web: {scale: 3}\n"}, lines: []string{
			hello, "! -o acme project create hello -m MANIFEST", "-j hello project plan", "project plan hello -m FILE", "project plan hello --json", "project plan hello -m FILE --json", "project plan nowhere -m FAULTY", "project plan nowhere -m FILE", "project plan nowhere", "-j hello -o acme project plan -m FILE --rolling 25% --canary 1",
			"-j hello project plan --canary 1", "-j hello project plan -m FILE --rolling x",
		}},
		"single": {files: map[string]string{"MANIFEST": groupManifest, "FILE": "compute_type: dummy\ncommand: [/bin/x, 1.10]\ncpu: 0.5\nrestart: no\nports: [8080]\n"}, lines: []string{
			hello, "! -o acme project create hello -m MANIFEST", "! package set small --memory 512m --cpu 0.5", "-j hello instance create shell -m FILE", "-j hello instance create shell -m FILE", "-j hello -o acme instance create shell --image shop/web:1 --command /bin/sh --env A=1 --env B=2,3 --memory 512m --cpu 2 --package small --port 8080",
			"-j hello -o acme instance create shell --compute-type dummy --command /bin/sh --env A=1 --env B=2,3 --memory 512m --cpu 2 --port 8080", "-j hello instance create true --compute-type dummy -- /bin/sh -c true",
			"-j hello instance create shell /bin/sh", "-j hello instance create shell --cpu many", "-j hello instance create other -m FILE --compute-type dummy --json", "-j hello instance stop web.1", "instance stop shell", "instance stop true", `~ /v1/instances/true "state": ?"stopped"`, "instance start true",
			`~ /v1/instances/true "state": ?"running"`, "-j hello instance restart web.1 --json", "-j hello instance replace web.1", "-j hello instance rm web.1", "-j hello instance rm other", "instance rm nothing",
		}},
	}
}
