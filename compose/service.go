package compose

import (
	"cmp"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"mariposa"
)

// service translates one service.
func (t *translation) service(name string, from *types.ServiceConfig) error {
	d := &draft{translation: t, name: name, from: from}
	if err := d.image(); err != nil {
		return err
	}
	d.words()
	d.scalars()
	d.environment()
	d.labels()
	d.size()
	d.ports()
	d.storage()
	d.networks()
	d.dependsOn()
	d.policies()
	d.healthCheck()
	t.out.Services = append(t.out.Services, entry{t.serviceNames[name], d.to})
	return nil
}

// draft is a service while it is being translated.
type draft struct {
	*translation
	name string
	from *types.ServiceConfig
	to   service

	mounted []string // paths of volumes
}

// at returns the steps to a key of the service.
func (d *draft) at(steps ...string) []string {
	return append([]string{"services", d.name}, steps...)
}

// accept reports whether a manifest can have a value, and notes if it cannot.
func (d *draft) accept(key string, value any, at ...string) bool {
	why := d.refusal(key, value)
	if why != "" {
		d.lost(d.at(at...), "is not carried over: %s", why)
	}
	return why == ""
}

// image sets the image. For one that Compose would build, it has the name that Compose
// gives it.
func (d *draft) image() error {
	d.to.Image = d.from.Image
	if d.to.Image == "" {
		d.to.Image = label(d.Project) + "-" + strings.ToLower(d.name)
	}
	if why := d.refusal("image", d.to.Image); why != "" {
		at := d.src.find(d.at("image")...)
		return fault(mariposa.Fault{Field: at.path, Code: mariposa.FaultInvalid, Message: why, Line: at.line})
	}
	if d.from.Build != nil {
		d.lost(d.at("build"), "Mariposa does not build images; build it and push it to a registry that the nodes can reach: `docker compose -p %s -f %s build %s && docker push %s`",
			label(d.Project), d.File, d.name, d.to.Image)
	}
	return nil
}

// words sets the entrypoint and the command.
func (d *draft) words() {
	literals := func(words []string) []string {
		all := make([]string, len(words))
		for i, w := range words {
			all[i] = d.literal(w)
		}
		return all
	}
	for _, k := range []struct {
		key  string
		from types.ShellCommand
		to   *[]string
	}{{"entrypoint", d.from.Entrypoint, &d.to.Entrypoint}, {"command", d.from.Command, &d.to.Command}} {
		switch words := literals(k.from); {
		case k.from == nil:
		case len(words) == 0:
			d.lost(d.at(k.key), "an empty value is not carried over: the %s of the image is used", k.key)
		case d.accept(k.key, words, k.key):
			*k.to = words
		}
	}
}

// scalars sets the working directory, the user and the name servers.
func (d *draft) scalars() {
	if dir := d.from.WorkingDir; dir != "" {
		if path.IsAbs(dir) {
			dir = path.Clean(dir)
		}
		if d.accept("working_dir", dir, "working_dir") {
			d.to.WorkingDir = dir
		}
	}
	if user := d.from.User; user != "" && d.accept("user", user, "user") {
		d.to.User = user
	}
	d.to.DNS = d.acceptEach("dns", d.from.DNS)
	d.to.DNSSearch = d.acceptEach("dns_search", d.from.DNSSearch)
}

// acceptEach returns the texts of a list that a manifest can have, each once.
func (d *draft) acceptEach(key string, all []string) []string {
	var good []string
	for _, one := range all {
		if !slices.Contains(good, one) && d.accept(key, []string{one}, key, one) {
			good = append(good, one)
		}
	}
	return good
}

// size sets how many instances there are, and their limits.
func (d *draft) size() {
	scale, deploy := d.from.Scale, d.from.Deploy
	at := []string{"scale"}
	if scale == nil && deploy != nil && deploy.Replicas != nil {
		scale, at = deploy.Replicas, []string{"deploy", "replicas"}
	}
	if scale != nil && d.accept("scale", *scale, at...) {
		d.to.Scale = scale
	}
	if d.oneShot[d.name] {
		d.to.Scale = new(int)
		d.lost(d.at(), "services that run once are not available yet, and a continuous one would be started again and again: its scale is 0; run its command yourself, for example with `docker run`")
	}
	memory, cpu := int64(d.from.MemLimit), float64(d.from.CPUS)
	memoryAt, cpuAt := []string{"mem_limit"}, []string{"cpus"}
	if deploy != nil && deploy.Resources.Limits != nil {
		if memory == 0 {
			memory, memoryAt = int64(deploy.Resources.Limits.MemoryBytes), []string{"deploy", "resources", "limits", "memory"}
		}
		if cpu == 0 {
			cpu, cpuAt = float64(deploy.Resources.Limits.NanoCPUs.Value()), []string{"deploy", "resources", "limits", "cpus"}
		}
	}
	if memory != 0 && d.accept("memory", size(memory), memoryAt...) {
		d.to.Memory = size(memory)
	}
	if cpu = decimal(cpu); cpu != 0 && d.accept("cpu", cpu, cpuAt...) {
		d.to.CPU = cpu
	}
}

// decimal rounds a number to thousandths: compose-go reads 0.1 as 0.10000000149.
func decimal(n float64) float64 {
	if n > 1e6 || n < -1e6 || n != n {
		return -1 // refused
	}
	thousandths := float64(int64(n*1000 + 0.5))
	if thousandths == 0 && n > 0 {
		return n
	}
	return thousandths / 1000
}

// networks sets the networks. Compose gives services without any a common one.
func (d *draft) networks() {
	names := d.from.NetworksByPriority()
	switch mode := d.from.NetworkMode; mode {
	case "":
	case "bridge", "default":
	default:
		d.lost(d.at("network_mode"), "is not carried over: a container has its own network namespace; it is in the network default instead")
		d.useDefaultNetwork()
		names = []string{"default"}
	}
	for _, name := range d.sortByLine(names, d.at("networks")...) {
		d.to.Networks = append(d.to.Networks, d.networkNames[name])
	}
	if !d.accept("networks", d.to.Networks, "networks") { // too many
		d.to.Networks = nil
	}
}

// dependsOn sets what the service starts after.
func (d *draft) dependsOn() {
	names := slices.Collect(maps.Keys(d.from.DependsOn))
	for _, name := range d.sortByLine(names, d.at("depends_on")...) {
		at := d.at("depends_on", name)
		if other, active := d.project.Services[name]; !active || other.Provider != nil {
			continue // it is optional, or a note says that the other service is left out
		}
		switch d.from.DependsOn[name].Condition {
		case types.ServiceConditionCompletedSuccessfully:
			d.lost(at, "is not carried over: services that run once are not available yet, so there is nothing to wait for")
			continue
		}
		d.to.DependsOn = append(d.to.DependsOn, d.serviceNames[name])
	}
	for _, link := range d.from.Links {
		if name, alias, ok := strings.Cut(link, ":"); ok && alias != name {
			d.lost(d.at("links", link), "the name %s is not carried over: others are reached by the name of their service, %s", alias, cmp.Or(d.serviceNames[name], name))
		}
	}
}

// findOneShots finds services that others wait for to complete.
func (t *translation) findOneShots() {
	t.oneShot = map[string]bool{}
	for _, svc := range t.project.Services {
		for name, dependency := range svc.DependsOn {
			if dependency.Condition == types.ServiceConditionCompletedSuccessfully {
				t.oneShot[name] = true
			}
		}
	}
}

// healthCheck sets the health check, which is a command inside the instance.
func (d *draft) healthCheck() {
	from := d.from.HealthCheck
	if from == nil || from.Disable || len(from.Test) > 0 && from.Test[0] == "NONE" {
		return
	}
	var command []string
	switch {
	case len(from.Test) > 1 && from.Test[0] == "CMD":
		command = from.Test[1:]
	case len(from.Test) > 1 && from.Test[0] == "CMD-SHELL":
		command = []string{"/bin/sh", "-c", from.Test[1]}
	default:
		d.lost(d.at("healthcheck"), "is not carried over: the check of the image itself is not known here; write its command into the file")
		return
	}
	seconds := func(given *types.Duration, otherwise float64) float64 {
		if given == nil {
			return otherwise
		}
		return time.Duration(*given).Seconds()
	}
	retries := 2 // Compose counts failures, and the first one is no repetition
	if from.Retries != nil {
		retries = max(0, int(min(*from.Retries, math.MaxInt32))-1)
	}
	poll := seconds(from.Interval, 30)
	check := &ordered{
		{"type", mariposa.CheckCommand}, {"command", command}, {"poll", poll}, {"unhealthy_poll", min(poll, 5)}, {"timeout", seconds(from.Timeout, 30)}, {"retries", retries},
	}
	if !d.accept("healthchecks", []any{check}, "healthcheck") {
		return
	}
	d.to.HealthChecks = []any{check}
	// Compose waits for a whole interval before each attempt, also at the start.
	if grace := seconds(from.StartPeriod, 0) + poll*float64(retries+1); d.accept("grace", grace, "healthcheck", "start_period") {
		d.to.Grace = &grace
	}
}

// policies sets what happens when instances end, stop and are updated.
func (d *draft) policies() {
	if policy, at := d.restart(); policy != "" && d.accept("restart", policy, at...) {
		d.to.Restart = policy
	}
	if grace := d.from.StopGracePeriod; grace != nil {
		stop := &ordered{{"timeout", time.Duration(*grace).Seconds()}}
		if d.accept("stop", stop, "stop_grace_period") {
			d.to.Stop = stop
		}
	}
	d.update()
}

// restart returns the restart policy, and where it is written.
func (d *draft) restart() (policy string, at []string) {
	if d.from.Deploy != nil && d.from.Deploy.RestartPolicy != nil {
		p := d.from.Deploy.RestartPolicy
		at = []string{"deploy", "restart_policy"}
		switch p.Condition {
		case "none":
			d.noteNoRestart("deploy", "restart_policy", "condition")
			return "", nil
		case "on-failure":
			policy = "on-failure"
			if p.MaxAttempts != nil && *p.MaxAttempts > 0 {
				policy = formatCount("on-failure:", *p.MaxAttempts)
			}
			return policy, at
		}
		return "always", at
	}
	if d.from.Restart == "no" {
		d.noteNoRestart("restart")
		return "", nil
	}
	return d.from.Restart, []string{"restart"}
}

func (d *draft) noteNoRestart(at ...string) {
	d.lost(d.at(at...), "is not carried over: an instance that ends is always replaced by a new one")
}

// update sets how rollouts go. With a port of the node, the old instance stops first: the
// new one could not have the port before.
func (d *draft) update() {
	put := func(key string, value any, at string) {
		one := &ordered{{key, value}}
		if d.accept("update", one, "deploy", "update_config", at) {
			set(&d.to.Update, key, value)
		}
	}
	if deploy := d.from.Deploy; deploy != nil && deploy.UpdateConfig != nil {
		u := deploy.UpdateConfig
		if u.Parallelism != nil {
			if *u.Parallelism == 0 {
				put("rolling", "100%", "parallelism")
			} else {
				put("rolling", *u.Parallelism, "parallelism")
			}
		}
		if u.Order != "" {
			put("order", u.Order, "order")
		}
		if u.FailureAction != "" {
			put("on_failure", u.FailureAction, "failure_action")
		}
		if u.Monitor > 0 {
			put("min_healthy", time.Duration(u.Monitor).Seconds(), "monitor")
		}
	}
	for _, port := range d.to.Ports {
		if _, fixed := port.(string); fixed && !d.to.Update.has("order") {
			set(&d.to.Update, "order", "stop-first")
		}
	}
}
