package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	dockerclient "github.com/moby/moby/client"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
)

const domain = ".mariposa.internal."

// lookup asks a DNS server. It returns the code of the answer, and the answers by their text.
func lookup(t *testing.T, at, name string, kind uint16) (string, []string) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), kind)
	in, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(t.Context(), m, at)
	if err != nil {
		return err.Error(), nil
	}
	var all []string
	for _, rr := range in.Answer {
		all = append(all, strings.Join(strings.Fields(rr.String())[4:], " "))
	}
	slices.Sort(all)
	return dns.RcodeToString[in.Rcode], all
}

// nameServer returns where the DNS server of a dev is.
func (h *devServer) nameServer() string {
	h.t.Helper()
	at := ""
	h.await("it says where its DNS server is", func() bool {
		if found := regexp.MustCompile(`DNS server .* is at (\S+)\.\n`).FindStringSubmatch(h.out.String()); found != nil {
			at = found[1]
		}
		return at != ""
	})
	return at
}

// nodeNameServer returns where processes on a node ask, by the directory of its data.
func nodeNameServer(t *testing.T, dir string) string {
	t.Helper()
	var id struct {
		DNS string `json:"dns"`
	}
	must(t, json.Unmarshal(read(t, filepath.Join(dir, "node.json")), &id))
	if id.DNS == "" {
		t.Fatal("the node has no DNS server")
	}
	return id.DNS
}

// ports returns the ports of SRV records.
func ports(records []string) []string {
	var all []string
	for _, r := range records {
		all = append(all, strings.Fields(r)[2])
	}
	slices.Sort(all)
	return all
}

// portsOf returns the ports of instances.
func portsOf(all map[string]contract.Instance) []string {
	var list []string
	for _, i := range all {
		_, port := mariposa.SplitAddress(i.Addresses[0])
		list = append(list, port)
	}
	slices.Sort(list)
	return list
}

// Names lead to healthy instances only, on the control plane and on the node, soon after a change.
func TestNamesLeadToHealthyInstances(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dns", "127.0.0.1:0")
	h.ok("project", "create", "shop", "-m", fileOf(t, served(3, "echo ok > health", "")+"  idle: {compute_type: dummy, scale: 0}\n"), "--wait")
	h.await("all instances are healthy", func() bool { return h.state("shop").Status == mariposa.StatusConverged })
	at, node := h.nameServer(), nodeNameServer(t, filepath.Join(h.dir, "node")) // which is there by now
	before := h.instances("shop")
	const web = "web.svc.shop.admin" + domain
	for _, server := range []string{at, node} {
		h.await("the names of all instances are known", func() bool {
			_, found := lookup(t, server, web, dns.TypeSRV)
			return slices.Equal(ports(found), portsOf(before))
		})
		for _, c := range []struct {
			name string
			kind uint16
			want string
		}{
			{web, dns.TypeA, "NOERROR [127.0.0.1]"},
			{"WEB.Svc.shop.ADMIN" + domain, dns.TypeA, "NOERROR [127.0.0.1]"},
			{web, dns.TypeAAAA, "NOERROR []"},
			{"idle.svc.shop.admin" + domain, dns.TypeA, "NOERROR []"},
			{"nothing.svc.shop.admin" + domain, dns.TypeA, "NXDOMAIN []"},
			{"web.1.inst.shop.admin" + domain, dns.TypeA, "NOERROR [127.0.0.1]"},
			{"web.private.svc.shop.admin" + domain, dns.TypeA, "NOERROR [127.0.0.1]"},
			{web, dns.TypeANY, "REFUSED []"},
		} {
			if code, found := lookup(t, server, c.name, c.kind); fmt.Sprint(code, " ", found) != c.want {
				t.Errorf("%s at %s: %s %v, want %s", c.name, server, code, found, c.want)
			}
		}
	}

	if text := h.ok("-j", "shop", "names"); strings.Count(text, "web.svc.shop.admin.mariposa.internal ") != 3 || !strings.Contains(text, "its scale is 0") {
		t.Errorf("the names of the project:\n%s", text)
	}

	sick := slices.Sorted(maps.Keys(before))[1]
	_, port := mariposa.SplitAddress(before[sick].Addresses[0])
	h.ok("-j", "shop", "instance", "exec", sick, "--", "rm", "health")
	left := map[string]time.Time{}
	var since time.Time                                                                                                 // when its health changed, by the clock of the agent, which is this machine's
	for deadline := time.Now().Add(limit); len(left) < 2 && time.Now().Before(deadline); time.Sleep(time.Millisecond) { // there is no signal to wait for: poll
		if since.IsZero() {
			since = h.unhealthySince("shop", sick)
		}
		for _, server := range []string{at, node} {
			if code, found := lookup(t, server, web, dns.TypeSRV); left[server].IsZero() && code == "NOERROR" && !slices.Contains(ports(found), port) {
				left[server] = time.Now()
			}
		}
	}
	if len(left) < 2 {
		t.Fatal("names still lead to an unhealthy instance")
	}
	for server, when := range left {
		t.Logf("%s stopped leading to it %s after its health changed", server, when.Sub(since).Round(time.Millisecond))
	}
	h.await("names lead to its successor", func() bool {
		_, found := lookup(t, node, web, dns.TypeSRV)
		return len(found) == 3 && slices.Equal(ports(found), portsOf(h.instances("shop")))
	})
}

// unhealthySince returns when a check of an instance has failed; zero if none has.
func (h *devServer) unhealthySince(project, instance string) time.Time {
	h.t.Helper()
	doc, err := h.HealthChecks(h.t.Context(), project, "")
	must(h.t, err)
	for _, s := range doc.Services {
		for _, i := range s.Instances {
			for _, c := range i.Checks {
				if (i.Instance == instance || i.InstanceName == instance) && c.Health == mariposa.HealthUnhealthy {
					return c.Since
				}
			}
		}
	}
	return time.Time{}
}

// asker is a service whose instances can ask for names, and be asked for.
func asker(name, networks string) string {
	return fmt.Sprintf("services:\n  %s: {compute_type: process, command: [sleep, '100000'], ports: [80], update: {min_healthy: 0}%s}\n", name, networks)
}

// Processes ask for the names of their own project and of those that share a network with it. The
// control plane tells them nothing.
func TestProcessesAskForTheirOwnNames(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dns", "127.0.0.1:0")
	shared := "networks: {meet: {shared: true}}\n"
	h.create("shop", asker("web", ", networks: [meet]")+shared)
	h.create("blog", asker("page", ", networks: [meet]")+shared)
	h.create("secret", asker("safe", ""))
	instance := map[string]string{}
	for project, service := range map[string]string{"shop": "web", "blog": "page", "secret": "safe"} {
		h.converged(project, service, 1)
		instance[project] = slices.Collect(maps.Keys(h.pids(project)))[0] // one that failed to start may be there too
	}
	ask := func(project, name string) string {
		command := []string{"getent", "ahostsv4", name} // it searches the domains of the project
		if strings.HasSuffix(name, ".") {
			command = []string{"busybox", "nslookup", name}
		}
		out, errs, code := h.mariposa("", append([]string{"-j", project, "instance", "exec", instance[project], "--"}, command...)...)
		return out + errs + " exit " + itoa(code)
	}
	var answer string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer was %s", answer)
		}
	})
	for _, c := range []struct {
		from, name string
		want       string
	}{
		{"shop", "web", "127.0.0.1"},
		{"shop", "web.svc", "127.0.0.1"},
		{"shop", "web.svc.shop.admin", "127.0.0.1"},
		{"shop", "page.svc.blog.admin" + domain, "127.0.0.1"},
		{"blog", "web.svc.shop.admin" + domain, "127.0.0.1"},
		{"secret", "safe", "127.0.0.1"},
		{"shop", "safe.svc.secret.admin" + domain, "NXDOMAIN"},
		{"secret", "web.svc.shop.admin" + domain, "NXDOMAIN"},
		{"secret", "nothing", "exit 2"},
		{"secret", "web", "exit 2"},
	} {
		h.await(c.from+" asks for "+c.name, func() bool {
			answer = ask(c.from, c.name)
			return strings.Contains(answer, c.want)
		})
	}
	for _, name := range []string{"web.svc.shop.admin" + domain, "safe.svc.secret.admin" + domain} {
		out, errs, _ := h.mariposa("", "-j", "secret", "instance", "exec", instance["secret"], "--", "busybox", "nslookup", name, h.nameServer())
		if text := out + errs; !strings.Contains(text, "REFUSED") {
			t.Errorf("the control plane told an instance %s:\n%s", name, text)
		}
	}
	if code, found := lookup(t, h.nameServer(), "safe.svc.secret.admin"+domain, dns.TypeA); len(found) != 1 {
		t.Errorf("the operator gets %s %v", code, found)
	}
}

// A node answers what it knows while its server is away, also after a restart of its agent.
func TestNodesAnswerWithoutTheirServer(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	one := a.agent("--dns-ttl", "1s")
	a.await("the node is there", func() bool { return a.node().Status == mariposa.NodeRunning })
	a.create("shop", asker("web", ""))
	a.converged("shop", "web", 1)
	node := nodeNameServer(t, a.dir)
	answers := func() bool {
		code, found := lookup(t, node, "web.svc.shop.admin"+domain, dns.TypeA)
		return code == "NOERROR" && len(found) == 1
	}
	a.await("the node answers", answers)
	end(a.server)
	if !answers() {
		t.Error("the node does not answer without its server")
	}
	a.await("the node has stored what it knows", func() bool {
		b, err := os.ReadFile(filepath.Join(a.dir, "names.json"))
		return err == nil && strings.Contains(string(b), "web.1-")
	})
	end(one)
	a.launch(nil, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	a.await("another agent of the node answers", answers)
	a.serve()
	a.await("the node is there again", func() bool { return a.node().Status == mariposa.NodeRunning })
	if !answers() {
		t.Error("the node does not answer with its server")
	}
}

// Containers and system containers ask the DNS server of their node, each network for its own
// projects, whichever address they ask.
func TestInstancesInNetworksAskForTheirOwnNames(t *testing.T) {
	t.Parallel()
	i := emptyIsland(t)
	engine, err := enginetest.StartInside(i.anchor.Process.Pid, t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, engine.Stop()) })
	i.env = []string{"MARIPOSA_DOCKER=" + engine.Host()}
	i.open()
	archive := filepath.Join(t.TempDir(), "small.tar")
	write(t, archive, smallSystem(t))
	i.ok("image", "import", archive, "--name", "small:1")
	box := func(name, more string) string {
		return fmt.Sprintf("  %s: {image: '%s', ports: [80], update: {min_healthy: 0}%s}\n", name, enginetest.Image, more)
	}
	system := func(name, more string) string {
		return fmt.Sprintf("  %s: {compute_type: infrastructure, image: 'small:1', ports: [80], update: {min_healthy: 0}%s}\n", name, more)
	}
	const meet = "networks: {meet: {shared: true}, own: {}}\n"
	for project, text := range map[string]string{
		"shop":   box("web", "") + system("sys", "") + box("given", ", dns: [192.0.2.53], dns_search: [example.org]") + box("searching", ", dns_search: [example.org]"),
		"other":  box("web", "") + system("sys", ""),
		"left":   box("one", ", command: [busybox, httpd, -f, -p, '80'], networks: [meet, own], healthchecks: [{type: tcp, port: 80, network: own}]") + meet,
		"right":  box("two", ", networks: [meet]") + meet,
		"lonely": system("box", ", networks: [own]") + "networks: {own: {}}\n",
	} {
		i.ok("project", "create", project, "-m", fileOf(t, "services:\n"+text), "--wait")
	}
	instances := map[string]contract.Instance{} // by project/service
	for _, project := range []string{"shop", "other", "left", "right", "lonely"} {
		for _, one := range i.running(project) {
			instances[project+"/"+one.ServiceName] = one
		}
	}
	address := func(key string) string {
		a, _ := mariposa.SplitAddress(instances[key].Addresses[0])
		return a
	}
	ask := func(from string, words ...string) string {
		project, _, _ := strings.Cut(from, "/")
		out, said, _ := i.try(append([]string{"-j", project, "instance", "exec", instances[from].Name, "--", "busybox", "nslookup"}, words...)...)
		return out + said
	}
	full := func(service, project string) string { return service + ".svc." + project + ".admin" + domain }
	check := func(when string) {
		for _, c := range []struct{ from, name, want string }{
			{"shop/web", full("sys", "shop"), address("shop/sys")},
			{"shop/web", "sys", address("shop/sys")},
			{"shop/sys", full("web", "shop"), address("shop/web")},
			{"shop/sys", "web", address("shop/web")},
			{"other/web", full("sys", "other"), address("other/sys")},
			{"other/web", full("sys", "shop"), "NXDOMAIN"},
			{"other/sys", full("web", "shop"), "NXDOMAIN"},
			{"left/one", full("two", "right"), address("right/two")},
			{"right/two", full("one", "left"), address("left/one")},
			{"left/one", "one.own.svc.left.admin" + domain, i.details(instances["left/one"].ID)[networkDetail(i, instances["left/one"], "left", "own")]},
			{"right/two", full("web", "shop"), "NXDOMAIN"},
			{"lonely/box", full("box", "lonely"), address("lonely/box")},
			{"lonely/box", full("one", "left"), "NXDOMAIN"},
		} {
			if c.want == "" {
				t.Fatalf("%+v: %+v", c, instances)
			}
			i.await(when+", "+c.from+" asks for "+c.name, func() bool { return strings.Contains(ask(c.from, c.name), c.want) })
		}
	}
	check("at first")

	// The door of another network does not open, whoever knocks.
	gateway := regexp.MustCompile(`\.\d+$`).ReplaceAllString(address("shop/web"), ".1")
	if text := ask("shop/sys", full("web", "shop"), gateway); !strings.Contains(text, address("shop/web")) {
		t.Errorf("%s is not the DNS server of the project:\n%s", gateway, text)
	}
	for _, from := range []string{"other/web", "other/sys", "left/one"} {
		if text := ask(from, full("web", "shop"), gateway); strings.Contains(text, address("shop/web")) || strings.Contains(text, "Name:") {
			t.Errorf("%s got an answer from the DNS server of another project:\n%s", from, text)
		}
	}

	// What the manifest says comes first.
	resolver := func(key string) (string, string) {
		c, err := engine.API.ContainerInspect(t.Context(), instances[key].PhysicalID, dockerclient.ContainerInspectOptions{})
		must(t, err)
		return fmt.Sprint(c.Container.HostConfig.DNS), fmt.Sprint(c.Container.HostConfig.DNSSearch)
	}
	if servers, search := resolver("shop/given"); servers != "[192.0.2.53]" || search != "[example.org]" {
		t.Errorf("with own name servers, a container asks %s and searches %s", servers, search)
	}
	if servers, search := resolver("shop/searching"); !strings.HasPrefix(servers, "["+gateway) || search != "[example.org svc.shop.admin.mariposa.internal shop.admin.mariposa.internal mariposa.internal]" {
		t.Errorf("with an own domain, a container asks %s and searches %s", servers, search)
	}

	end(i.dev)
	i.start()
	check("after a restart of the agent")
	for _, project := range []string{"shop", "other", "left", "right", "lonely"} {
		for name, one := range i.running(project) {
			if one.ID != instances[project+"/"+one.ServiceName].ID {
				t.Errorf("%s was replaced", name)
			}
		}
	}
}

// networkDetail returns the name of the detail with the address of an instance in a network.
func networkDetail(i *island, one contract.Instance, project, name string) string {
	i.t.Helper()
	var all contract.Networks
	must(i.t, json.Unmarshal([]byte(i.ok("-j", project, "network", "list", "--json")), &all))
	for _, n := range all.Networks {
		if n.Name == name {
			return mariposa.NetworkDetail(mariposa.AttachmentID(n.ID, one.Node, one.ComputeType))
		}
	}
	i.t.Fatalf("%s has no network %s", project, name)
	return ""
}
