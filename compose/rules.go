package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rule says what becomes of a key. A key without a rule is noted as lost, so a key that
// the Compose specification gains is never dropped silently.
type rule struct {
	carried bool            // the translation of services has it, or the key means nothing here
	fine    []string        // values that need no note
	note    string          // why it is lost, and what to do instead
	inside  map[string]rule // rules for the keys below; for those of all entries: "*"
}

var (
	carried   = rule{carried: true}
	unlimited = "a manifest has no such limit"
	isolated  = "a container always has its own namespaces"
)

func lostKey(note string, fine ...string) rule { return rule{note: note, fine: fine} }

func each(inside map[string]rule) rule {
	return rule{inside: map[string]rule{"*": {inside: inside}}}
}

// topRules are the rules for a whole file.
var topRules = map[string]rule{
	"name":     carried, // the command line names the project
	"version":  carried, // means nothing since Compose 2
	"include":  carried, // compose-go has resolved it
	"services": each(serviceRules),
	"networks": each(networkRules),
	"volumes":  each(volumeRules),
	"secrets":  each(fileRules),
	"configs":  each(fileRules),
	"jobs":     lostKey("services that run once are not available yet; run them with `docker compose run`"),
	"models":   lostKey("a manifest has no models; run the model as a service"),
}

var serviceRules = map[string]rule{
	"image": carried, "command": carried, "entrypoint": carried, "environment": carried, "env_file": carried,
	"expose": carried, "scale": carried, "mem_limit": carried, "cpus": carried, "restart": carried, "labels": carried,
	"label_file": carried, "working_dir": carried, "user": carried, "dns": carried, "dns_search": carried,
	"stop_grace_period": carried, "profiles": carried, "links": carried, "network_mode": carried, "build": carried,
	"extends": carried, "volumes": carried, "healthcheck": carried, "ports": carried,
	"attach":  carried, // says what `docker compose up` prints
	"develop": carried, // for `docker compose watch`

	"networks": each(map[string]rule{
		"aliases":  lostKey("in a network, a container is reached by the name of its service or instance; change what uses the alias"),
		"priority": carried, "gw_priority": carried, // the order of networks has no effect
	}),
	"depends_on": each(map[string]rule{
		"condition": carried, "required": carried,
		"restart": lostKey("a service is not restarted with another one; refer to a value of it ({{ .services.NAME.id }}) to follow it", "false"),
	}),
	"secrets": each(mountRules), "configs": each(mountRules),
	"deploy": {inside: deployRules},

	"container_name": lostKey("containers are named by Mariposa; others reach them by the name of the service"),
	"hostname":       lostKey("the host name is that of the instance; others reach it by the name of the service"),
	"domainname":     lostKey("a container has no domain name; others reach it by the name of the service"),
	"privileged":     lostKey("containers are never privileged", "false"),
	"cap_add":        lostKey("containers have the engine's default capabilities"),
	"cap_drop":       lostKey("containers have the engine's default capabilities"),
	"security_opt":   lostKey("containers have the engine's default profiles, and never gain privileges (no-new-privileges)", "[no-new-privileges:true]", "[no-new-privileges]"),
	"devices":        lostKey("devices of a node cannot be given to a container"),
	"gpus":           lostKey("devices of a node cannot be given to a container"),

	"device_cgroup_rules": lostKey("devices of a node cannot be given to a container"),
	"pid":                 lostKey(isolated), "ipc": lostKey(isolated, "private"), "uts": lostKey(isolated), "userns_mode": lostKey(isolated),
	"cgroup": lostKey(isolated, "private"), "cgroup_parent": lostKey("the engine chooses the cgroup"),
	"isolation": lostKey("the engine chooses the isolation", "default"), "runtime": lostKey("the engine chooses the runtime"),
	"init":               lostKey("no init process is added; use an image with one, such as tini", "false"),
	"tty":                lostKey("containers have no terminal; `mariposa instance exec` opens one", "false"),
	"stdin_open":         lostKey("containers have no standard input; `mariposa instance exec` runs a command with one", "false"),
	"read_only":          lostKey("the container can write to its own file system", "false"),
	"tmpfs":              lostKey("the path is on the container's file system, which is removed with the container"),
	"shm_size":           lostKey("/dev/shm has the engine's default size"),
	"logging":            lostKey("the node keeps the logs; read them with `mariposa logs`"),
	"log_driver":         lostKey("the node keeps the logs; read them with `mariposa logs`"),
	"log_opt":            lostKey("the node keeps the logs; read them with `mariposa logs`"),
	"platform":           lostKey("a node runs images of its own platform"),
	"pull_policy":        lostKey("a node pulls an image only if it does not have it; use a new tag for each new image", "missing", "if_not_present", "build"),
	"pull_refresh_after": lostKey("a node pulls an image only if it does not have it; use a new tag for each new image"),
	"stop_signal":        lostKey("the image says with which signal its container stops (STOPSIGNAL)", "SIGTERM", "TERM"),
	"extra_hosts":        lostKey("names cannot be added to /etc/hosts; use a name server (dns) or addresses"),

	"external_links": lostKey("containers outside the project are reached through a shared network (networks: {NAME: {shared: true}})"),
	"volumes_from":   lostKey("each instance has its own volumes; they cannot be shared"),
	"volume_driver":  lostKey("volumes are those of the engine on the instance's node", "local"),
	"storage_opt":    lostKey(unlimited), "ulimits": lostKey("limits of the engine apply"),
	"sysctls": lostKey("kernel parameters cannot be set"), "annotations": lostKey("a manifest has no annotations; use labels"),
	"group_add": lostKey("a container has the groups of its user in the image"), "mac_address": lostKey("the engine chooses the address"),
	"dns_opt": lostKey("options of the resolver cannot be set"), "umask": lostKey("the umask of the image applies"),
	"cpu_shares": lostKey("use cpus"), "cpu_quota": lostKey("use cpus"), "cpu_period": lostKey("use cpus"), "cpu_count": lostKey("use cpus"),
	"cpu_percent": lostKey("use cpus"), "cpu_rt_runtime": lostKey("use cpus"), "cpu_rt_period": lostKey("use cpus"), "cpuset": lostKey("use cpus"),
	"mem_reservation": lostKey("what is limited is also reserved; use mem_limit"),
	"memswap_limit":   lostKey("containers with a memory limit use no swap"), "mem_swappiness": lostKey("containers with a memory limit use no swap"),
	"oom_kill_disable": lostKey("a container that runs out of memory is killed and replaced", "false"), "oom_score_adj": lostKey("the engine's default applies"),
	"pids_limit":      lostKey("containers have at most 4,096 processes and threads"),
	"blkio_config":    lostKey(unlimited),
	"pre_start":       lostKey("a manifest has no hooks; start the command in the image's entrypoint"),
	"post_start":      lostKey("a manifest has no hooks; start the command in the image's entrypoint"),
	"pre_stop":        lostKey("a manifest has no hooks; handle the stop signal in the program"),
	"provider":        lostKey("services of other programs cannot be run; the service is left out"),
	"models":          lostKey("a manifest has no models; run the model as a service"),
	"use_api_socket":  lostKey("the engine's socket cannot be given to a container", "false"),
	"credential_spec": lostKey("a manifest has no credential specifications"),
}

var deployRules = map[string]rule{
	"replicas":      carried,
	"mode":          lostKey("services always have a number of replicas; set scale, or `mariposa project scale`", "replicated"),
	"endpoint_mode": lostKey("the name of a service leads to its instances, without a virtual address", "dnsrr"),
	"labels":        lostKey("labels of the service itself do not exist; use labels outside deploy"),
	"placement":     lostKey("nodes cannot be chosen yet"),
	"resources": {inside: map[string]rule{
		"limits":       {inside: map[string]rule{"cpus": carried, "memory": carried, "pids": lostKey("containers have at most 4,096 processes and threads")}},
		"reservations": lostKey("what is limited is also reserved; use resources.limits"),
	}},
	"restart_policy": {inside: map[string]rule{
		"condition": carried, "max_attempts": carried,
		"delay":  lostKey("Mariposa chooses the delay, which grows with each failure"),
		"window": lostKey("a node restarts an instance at most 3 times in 10 minutes, then it is replaced"),
	}},
	"update_config": {inside: map[string]rule{
		"parallelism": carried, "order": carried, "failure_action": carried, "monitor": carried,
		"delay":             lostKey("a rollout goes on when new instances have been up for min_healthy seconds", "0s", "0"),
		"max_failure_ratio": lostKey("a rollout fails at its first instance that does not stay up", "0"),
	}},
	"rollback_config": lostKey("going back to a version follows the same settings as a rollout"),
}

var mountRules = map[string]rule{
	"source": carried, "target": carried,
	"uid":  lostKey("files belong to the container's user"),
	"gid":  lostKey("files belong to the container's user"),
	"mode": lostKey("files are readable only by the container's user (mode 0400)", "256"),
}

var networkRules = map[string]rule{
	"external": carried, "name": carried,
	"attachable": carried, // containers outside never join
	"driver":     lostKey("networks are bridge networks of the engine on each node", "bridge", "default"),
	"internal":   lostKey("containers can reach what is outside the network", "false"),
	"labels":     lostKey("networks have no labels"), "driver_opts": lostKey("networks have no options"),
	"ipam": lostKey("the engine chooses the addresses"), "enable_ipv4": lostKey("the engine decides", "true"), "enable_ipv6": lostKey("the engine decides", "false"),
}

var volumeRules = map[string]rule{
	"external": carried, "name": carried,
	"driver": lostKey("volumes are those of the engine on the instance's node", "local"), "driver_opts": lostKey("volumes have no options"),
	"labels": lostKey("volumes have no labels"),
}

var fileRules = map[string]rule{
	"file": carried, "content": carried, "environment": carried, "external": carried, "name": carried, "x-#value": carried,
	"labels": lostKey("files have no labels"), "driver": lostKey("there are no other stores of secrets"),
	"driver_opts": lostKey("there are no other stores of secrets"), "template_driver": lostKey("the text is used as it is"),
}

// noteKeys notes all keys that are not carried over.
func (t *translation) noteKeys() { t.noteBelow(t.written, topRules, nil) }

func (t *translation) noteBelow(keys map[string]any, rules map[string]rule, at []string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		r, known := rules[key]
		if !known {
			r, known = rules["*"]
		}
		switch {
		case strings.HasPrefix(key, "x-") && !t.isName(at) || r.carried || value == nil:
		case len(at) == 1 && t.isDisabled(at[0], key):
		case r.inside != nil:
			t.noteInside(value, r.inside, append(slices.Clip(at), key))
		case !known:
			t.lost(append(slices.Clip(at), key), "is not carried over: a manifest has no such key")
		case !isFine(value, r.fine):
			t.lost(append(slices.Clip(at), key), "is not carried over: %s", r.note)
		}
	}
}

// noteInside applies rules to the keys of a mapping, or of each entry of a list.
func (t *translation) noteInside(value any, rules map[string]rule, at []string) {
	switch v := value.(type) {
	case map[string]any:
		t.noteBelow(v, rules, at)
	case []any:
		for i, item := range v {
			below, ok := item.(map[string]any)
			if !ok {
				continue
			}
			step := fmt.Sprintf("[%d]", i)
			if name, ok := below["source"].(string); ok {
				step = name
			}
			t.noteBelow(below, rules["*"].inside, append(slices.Clip(at), step))
		}
	}
}

// isName reports whether the keys at a place are names that the user chose.
func (t *translation) isName(at []string) bool {
	return len(at) == 1 && topRules[at[0]].inside != nil || len(at) == 3 && at[0] == "services" && (at[2] == "networks" || at[2] == "depends_on")
}

// isDisabled reports whether a profile leaves a service out.
func (t *translation) isDisabled(kind, name string) bool {
	_, disabled := t.project.DisabledServices[name]
	return kind == "services" && disabled
}

// isFine reports whether a value has the effect that a manifest has anyway.
func isFine(value any, fine []string) bool {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			return true
		}
	case []any:
		if len(v) == 0 {
			return true
		}
	}
	return slices.Contains(fine, fmt.Sprint(value))
}

// noteProfiles notes the services that a profile leaves out.
func (t *translation) noteProfiles() {
	for _, name := range slices.Sorted(maps.Keys(t.project.DisabledServices)) {
		svc := t.project.DisabledServices[name]
		t.lost([]string{"services", name, "profiles"}, "the service is left out, because none of its profiles is active; to include it, set COMPOSE_PROFILES=%s", strings.Join(svc.Profiles, ","))
	}
}
