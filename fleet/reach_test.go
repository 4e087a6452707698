package fleet_test

import "testing"

// Nodes behind a proxy or a router connect from one address, and are still different machines: the
// loopback of one is not that of the other.
func TestABalancerReachesMembersOfOtherNodes(t *testing.T) {
	t.Parallel()
	const body = "services:\n  web: {compute_type: process, command: [x], ports: [80]}\nload_balancers:\n  front: {listen: 80, service: web, port: 80}\n"
	for name, c := range map[string]struct{ from1, from2, stack1, stack2, address, why string }{
		"another address":                {"192.0.2.1:1", "192.0.2.2:1", "a", "b", "192.0.2.2:4000", ""},
		"the same machine":               {"192.0.2.1:1", "192.0.2.1:2", "a", "a", "127.0.0.1:4000", ""},
		"the same machine as the server": {"127.0.0.1:1", "127.0.0.1:2", "a", "a", "127.0.0.1:4000", ""},
		"behind one router":              {"192.0.2.1:1", "192.0.2.1:2", "a", "b", "192.0.2.1:4000", ""},
		"behind a proxy of the server":   {"127.0.0.1:1", "127.0.0.1:2", "a", "b", "", "the address of its node is not known"},
		"agents of an earlier release":   {"192.0.2.1:1", "192.0.2.1:2", "", "", "127.0.0.1:4000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.project("p", body)
			one, two := r.connectFrom("n1", c.from1, c.stack1), r.connectFrom("n2", c.from2, c.stack2)
			r.serveBehind(one, two)
			if got := lastMembers(t, one); len(got) != 1 || got[0].Address != c.address || got[0].Reason != c.why {
				t.Errorf("its members are %+v", got)
			}
		})
	}
}
