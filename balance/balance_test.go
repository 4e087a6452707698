package balance_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/balance"
)

func member(id, address string, weight int, state mariposa.MemberState) mariposa.Member {
	return mariposa.Member{Backend: "web.80", Instance: id, Address: address, Weight: weight, State: state}
}

func server(name, address string, weight int, state balance.State, connections int) balance.Server {
	return balance.Server{Backend: "web.80", Name: name, Address: address, Weight: weight, State: state, Connections: connections}
}

func TestCommandsBringABalancerToItsMembers(t *testing.T) {
	t.Parallel()
	up, drain := mariposa.MemberUp, mariposa.MemberDrain
	for name, c := range map[string]struct {
		desired []mariposa.Member
		actual  []balance.Server
		want    []string
	}{
		"a new member is added": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, up)},
			nil,
			[]string{"add server web.80/a 10.0.0.1:80 weight 100", "set server web.80/a state ready"},
		},
		"a member that is as it should be is left alone": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, up)}, []balance.Server{server("a", "10.0.0.1:80", 100, balance.Ready, 3)}, nil,
		},
		"a member taken out by hand comes back": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, up)},
			[]balance.Server{server("a", "10.0.0.1:80", 100, balance.Maint, 0)},
			[]string{"set server web.80/a state ready"},
		},
		"a member that somebody marked as failed comes back": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, up)},
			[]balance.Server{server("a", "10.0.0.1:80", 100, balance.Stopped, 0)},
			[]string{"set server web.80/a health up"},
		},
		"a leaving member that somebody marked as failed drains": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, drain)},
			[]balance.Server{server("a", "10.0.0.1:80", 100, balance.Stopped, 1)},
			[]string{"set server web.80/a state drain"},
		},
		"a wrong weight and a wrong port are corrected": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, up)},
			[]balance.Server{server("a", "10.0.0.1:81", 7, balance.Ready, 0)},
			[]string{"set server web.80/a addr 10.0.0.1 port 80", "set server web.80/a weight 100"},
		},
		"the same address with another id is another member": {
			[]mariposa.Member{member("b", "10.0.0.1:80", 100, up)},
			[]balance.Server{server("a", "10.0.0.1:80", 100, balance.Ready, 0)},
			[]string{"add server web.80/b 10.0.0.1:80 weight 100", "set server web.80/b state ready", "set server web.80/a state maint", "del server web.80/a"},
		},
		"a leaving member drains": {
			[]mariposa.Member{member("a", "10.0.0.1:80", 100, drain)},
			[]balance.Server{server("a", "10.0.0.1:80", 100, balance.Ready, 3)},
			[]string{"set server web.80/a state drain"},
		},
		"a leaving member that was never there is not added": {[]mariposa.Member{member("a", "10.0.0.1:80", 100, drain)}, nil, nil},
		"a former member with connections is only taken out": {
			nil, []balance.Server{server("a", "10.0.0.1:80", 100, balance.Ready, 1)}, []string{"set server web.80/a state maint"},
		},
		"a server that is not ours is left alone":  {nil, []balance.Server{server("by-hand", "10.0.0.9:80", 1, balance.Ready, 0)}, nil},
		"a member without an address is not added": {[]mariposa.Member{member("a", "", 100, up)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours := map[balance.Key]bool{{Backend: "web.80", Instance: "a"}: true, {Backend: "web.80", Instance: "b"}: true}
			if got := balance.Commands(c.desired, c.actual, ours); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// model is a balancer that obeys commands like HAProxy.
type model map[balance.Key]*balance.Server

func (m model) apply(t *rapid.T, command string) {
	words := strings.Fields(command)
	backend, name, _ := strings.Cut(words[2], "/")
	k := balance.Key{Backend: backend, Instance: name}
	s := m[k]
	switch {
	case words[0] == "add":
		if s != nil {
			t.Fatalf("%s: it exists", command)
		}
		weight, _ := strconv.Atoi(words[5])
		m[k] = &balance.Server{Backend: backend, Name: name, Address: words[3], Weight: weight, State: balance.Maint}
		return
	case s == nil:
		t.Fatalf("%s: there is no such server", command)
	case words[0] == "del":
		if s.State != balance.Maint || s.Connections > 0 {
			t.Fatalf("%s: its state is %s, with %d connections", command, s.State, s.Connections)
		}
		delete(m, k)
	case words[3] == "health":
		s.State = balance.Ready
	case words[3] == "state":
		s.State = balance.State(words[4])
	case words[3] == "weight":
		s.Weight, _ = strconv.Atoi(words[4])
	case words[3] == "addr":
		s.Address = words[4] + ":" + words[6]
	}
}

func (m model) list() []balance.Server {
	var all []balance.Server
	for _, s := range m {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b balance.Server) int { return strings.Compare(a.Backend+a.Name, b.Backend+b.Name) })
	return all
}

func TestAnyBalancerReachesItsMembersInTwoRoundsOnceConnectionsEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		backends, names := []string{"web.80", "api.81"}, []string{"a", "b", "c", "d", "foreign"}
		address := rapid.SampledFrom([]string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.1:81"})
		weight := rapid.IntRange(0, 256)
		ours, actual, foreign := map[balance.Key]bool{}, model{}, map[balance.Key]balance.Server{}
		var desired []mariposa.Member
		for _, backend := range backends {
			for _, name := range names {
				k := balance.Key{Backend: backend, Instance: name}
				ours[k] = name != "foreign"
				if rapid.Bool().Draw(t, "exists") {
					s := &balance.Server{Backend: backend, Name: name, Address: address.Draw(t, "at"), Weight: weight.Draw(t, "weight"), Connections: rapid.IntRange(0, 2).Draw(t, "connections")}
					s.State = rapid.SampledFrom([]balance.State{balance.Ready, balance.Drain, balance.Maint, balance.Stopped}).Draw(t, "state")
					if actual[k] = s; name == "foreign" {
						foreign[k] = *s
					}
				}
				if name != "foreign" && rapid.Bool().Draw(t, "desired") {
					desired = append(desired, mariposa.Member{
						Backend: backend, Instance: name, Address: address.Draw(t, "should be at"), Weight: weight.Draw(t, "should weigh"),
						State: rapid.SampledFrom([]mariposa.MemberState{mariposa.MemberUp, mariposa.MemberDrain}).Draw(t, "should be"),
					})
				}
			}
		}
		for range 2 {
			for _, command := range balance.Commands(desired, actual.list(), ours) {
				actual.apply(t, command)
			}
			for k, s := range actual {
				if ours[k] {
					s.Connections = 0
				}
			}
		}
		if left := balance.Commands(desired, actual.list(), ours); len(left) > 0 {
			t.Fatalf("after two rounds there is more to do: %q", left)
		}
		for k, s := range foreign {
			if actual[k] == nil || *actual[k] != s {
				t.Fatalf("a server that is not ours was touched: %v", k)
			}
		}
		for _, st := range balance.Statuses(desired, actual.list(), false) {
			want := desired[slices.IndexFunc(desired, func(m mariposa.Member) bool { return m.Backend == st.Backend && m.Instance == st.Instance })]
			if st.State != want.State || want.State == mariposa.MemberUp && (st.Address != want.Address || st.Weight != want.Weight) {
				t.Fatalf("the member is %+v, and should be %+v", st, want)
			}
		}
		for k := range maps.Keys(actual) {
			if ours[k] && !slices.ContainsFunc(desired, func(m mariposa.Member) bool { return balance.KeyOf(&m) == k }) {
				t.Fatalf("%v is still there", k)
			}
		}
	})
}

func TestNothingIsIdleWhileConnectionsMayBeHidden(t *testing.T) {
	t.Parallel()
	desired := []mariposa.Member{member("a", "10.0.0.1:80", 100, mariposa.MemberDrain), member("b", "10.0.0.2:80", 100, mariposa.MemberDrain), member("c", "10.0.0.3:80", 100, mariposa.MemberDrain)}
	actual := []balance.Server{server("a", "10.0.0.1:80", 100, balance.Drain, 0), server("b", "10.0.0.2:80", 100, balance.Drain, 1)}
	for busy, want := range map[bool]string{false: "true false true", true: "false false false"} {
		var got []string
		for _, st := range balance.Statuses(desired, actual, busy) {
			got = append(got, strconv.FormatBool(st.Idle))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("busy %t: got %s, want %s", busy, text, want)
		}
	}
}

func TestACanaryGetsItsShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fresh, old, share := rapid.IntRange(1, 10).Draw(t, "new"), rapid.IntRange(1, 10).Draw(t, "old"), rapid.IntRange(5, 95).Draw(t, "share")
		a, b := balance.Weights(fresh, old, share)
		if a < 1 || b < 1 || a > 256 || b > 256 {
			t.Fatalf("weights %d and %d are out of range", a, b)
		}
		got := 100 * float64(a*fresh) / float64(a*fresh+b*old)
		if got < float64(share)-4 || got > float64(share)+4 {
			t.Fatalf("%d new and %d old ones with %d and %d: the new ones get %.1f %%, want %d %%", fresh, old, a, b, got, share)
		}
	})
	if a, b := balance.Weights(3, 0, 10); a != 100 || b != 100 {
		t.Errorf("without old ones: %d, %d", a, b)
	}
	if a, b := balance.Weights(3, 2, 0); a != 100 || b != 100 {
		t.Errorf("without a share: %d, %d", a, b)
	}
	if a, b := balance.Weights(1, 1, 100); a != 100 || b != 0 {
		t.Errorf("with everything for the new one: %d, %d", a, b)
	}
}

func TestMembersOnUnreachableNodesGoOnlyIfOthersAreUp(t *testing.T) {
	t.Parallel()
	candidate := func(id string, state mariposa.MemberState, suspect bool, number int) balance.Candidate {
		return balance.Candidate{Member: member(id, "10.0.0.1:80", 0, state), Suspect: suspect, Number: number, Digest: fmt.Sprint(number)}
	}
	up, drain := mariposa.MemberUp, mariposa.MemberDrain
	for name, c := range map[string]struct {
		all  []balance.Candidate
		want string
	}{
		"another is up":                  {[]balance.Candidate{candidate("b", up, false, 1), candidate("a", up, true, 1)}, "b:100"},
		"no other is up":                 {[]balance.Candidate{candidate("b", up, true, 1), candidate("a", up, true, 1)}, "a:100 b:100"},
		"the other one leaves":           {[]balance.Candidate{candidate("b", drain, false, 1), candidate("a", up, true, 1)}, "a:100 b:100"},
		"a share for the newest version": {[]balance.Candidate{candidate("a", up, false, 1), candidate("b", up, false, 2)}, "a:180 b:20"},
		"the newest version is leaving":  {[]balance.Candidate{candidate("a", up, false, 1), candidate("b", drain, false, 2)}, "a:100 b:100"},
		"there is nothing":               {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, m := range balance.Members(c.all, 10) {
				got = append(got, fmt.Sprintf("%s:%d", m.Instance, m.Weight))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}

// A member that should be up gets connections again as soon as the balancer is corrected. If what
// is shown meanwhile counted as drained, an instance that leaves a moment later would be stopped
// at once.
func TestAMemberTakenOutByHandIsNotIdle(t *testing.T) {
	t.Parallel()
	desired := []mariposa.Member{member("a", "10.0.0.1:80", 100, mariposa.MemberUp)}
	for _, state := range []balance.State{balance.Maint, balance.Drain} {
		if got := balance.Statuses(desired, []balance.Server{server("a", "10.0.0.1:80", 100, state, 0)}, false); got[0].Idle {
			t.Errorf("a member that is in %s counts as drained", state)
		}
	}
}
