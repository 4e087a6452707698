package pace

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// lostAt returns nodes that were lost so many seconds after noon.
func lostAt(seconds ...int) (all []LostNode) {
	for i, s := range seconds {
		all = append(all, LostNode{ID: fmt.Sprint("n", i), Since: noon.Add(time.Duration(s) * time.Second)})
	}
	return all
}

func TestHowManyLostNodesAreAStorm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		nodes   Nodes
		percent int
		held    int
		slowed  int
	}{
		{"none", Nodes{Reachable: 12}, 33, 0, 0},
		{"one of four", Nodes{Reachable: 3, Lost: lostAt(0)}, 33, 0, 0},
		{"two of four", Nodes{Reachable: 2, Lost: lostAt(0, 10)}, 33, 2, 0},
		{"two of three are too few", Nodes{Reachable: 1, Lost: lostAt(0, 10)}, 33, 0, 0},
		{"a quarter of twelve", Nodes{Reachable: 9, Lost: lostAt(0, 1, 2)}, 33, 0, 3},
		{"a third of twelve", Nodes{Reachable: 8, Lost: lostAt(0, 1, 2, 3)}, 33, 0, 4},
		{"a third of six", Nodes{Reachable: 4, Lost: lostAt(0, 1)}, 33, 0, 2},
		{"more than a third of six", Nodes{Reachable: 3, Lost: lostAt(0, 1, 2)}, 33, 3, 0},
		{"a sixth of twelve", Nodes{Reachable: 10, Lost: lostAt(0, 1)}, 33, 0, 0},
		{"more than a third of twelve", Nodes{Reachable: 7, Lost: lostAt(0, 1, 2, 3, 4)}, 33, 5, 0},
		{"one after another", Nodes{Reachable: 7, Lost: lostAt(0, 100, 200, 300, 400)}, 33, 0, 0},
		{"some earlier, the rest at once", Nodes{Reachable: 8, Lost: lostAt(-9000, -8000, 0, 10, 20, 30, 40)}, 33, 5, 0},
		{"switched off", Nodes{Reachable: 2, Lost: lostAt(0, 1, 2, 3, 4, 5, 6, 7)}, 0, 0, 0},
		{"another share", Nodes{Reachable: 5, Lost: lostAt(0, 1, 2, 3, 4)}, 60, 0, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := JudgeWeather(c.nodes, nil, c.percent)
			if len(w.Held) != c.held || len(w.After) != c.slowed || (w.Storm != nil) != (c.held > 0) {
				t.Errorf("held %v, slowed %v, storm %+v", w.Held, w.After, w.Storm)
			}
		})
	}
}

func TestAStormIsOverWhenMostNodesAreBack(t *testing.T) {
	t.Parallel()
	storm := JudgeWeather(Nodes{Reachable: 7, Lost: lostAt(0, 1, 2, 3, 4)}, nil, 33).Storm
	stored := *storm
	stored.Began = noon.Add(5 * time.Second)
	for left, held := range map[int]int{5: 5, 4: 4, 3: 3, 2: 0, 1: 0, 0: 0} {
		w := JudgeWeather(Nodes{Reachable: 12 - left, Lost: lostAt(0, 1, 2, 3, 4)[5-left:]}, &stored, 33)
		if len(w.Held) != held || (w.Storm != nil) != (held > 0) {
			t.Errorf("%d left: held %v, storm %+v", left, w.Held, w.Storm)
		}
	}
	for _, c := range []struct {
		name  string
		nodes Nodes
		held  int
	}{
		{"all but one of the lost nodes were removed", Nodes{Reachable: 5, Lost: lostAt(0)}, 0},
		{"all but one of the lost nodes have returned, and it will too", Nodes{Reachable: 4, Lost: lostAt(0)}, 1},
		{"another one is given up", Nodes{Reachable: 4, Lost: lostAt(0), GivenUp: lostAt(1)}, 1},
		{"too few nodes are left", Nodes{Reachable: 1, Lost: lostAt(0, 1)}, 0},
		{"enough are left", Nodes{Reachable: 3, Lost: lostAt(0, 1)}, 2},
	} {
		if w := JudgeWeather(c.nodes, &stored, 33); len(w.Held) != c.held {
			t.Errorf("%s: held %v", c.name, w.Held)
		}
	}
	late := append(lostAt(0, 1, 2, 3, 4), LostNode{"late", noon.Add(time.Hour)})
	if w := JudgeWeather(Nodes{Reachable: 6, Lost: late}, &stored, 33); w.Held["late"] || len(w.Held) != 5 {
		t.Errorf("a node that is lost an hour later is part of the storm: %v", w.Held)
	}
}

// Whoever decides from the same facts decides the same, whatever the order; a storm that
// began holds all nodes that it counted.
func TestAllServersJudgeTheWeatherAlike(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := Nodes{Reachable: rapid.IntRange(0, 20).Draw(t, "reachable"), Lost: lostAt(rapid.SliceOfN(rapid.IntRange(-600, 600), 0, 20).Draw(t, "lost")...)}
		percent := rapid.IntRange(0, 100).Draw(t, "percent")
		var stored *mariposa.Storm
		if rapid.Bool().Draw(t, "stored") {
			stored = &mariposa.Storm{Since: noon.Add(-time.Minute), Began: noon}
		}
		shuffled := Nodes{Reachable: n.Reachable, Lost: rapid.Permutation(n.Lost).Draw(t, "order")}
		a, b := JudgeWeather(n, stored, percent), JudgeWeather(shuffled, stored, percent)
		if fmt.Sprint(a.Held, a.After) != fmt.Sprint(b.Held, b.After) || (a.Storm == nil) != (b.Storm == nil) {
			t.Fatalf("%+v\n%+v", a, b)
		}
		if a.Storm != nil && stored == nil && len(a.Held) < a.Storm.Count {
			t.Fatalf("%d held of %d", len(a.Held), a.Storm.Count)
		}
	})
}

// What people read counts all nodes that are lost in the storm, also those that were
// noticed after it was stored and those that were given up.
func TestAStormCountsTheNodesThatAreLostNow(t *testing.T) {
	t.Parallel()
	stored := *JudgeWeather(Nodes{Reachable: 3, Lost: lostAt(0, 1)}, nil, 33).Storm
	if stored.Count != 2 || stored.Of != 5 {
		t.Fatalf("%+v", stored)
	}
	for _, c := range []struct {
		name  string
		nodes Nodes
		count int
		held  int
	}{
		{"another one is noticed", Nodes{Reachable: 2, Lost: lostAt(0, 1, 4)}, 3, 3},
		{"one returns", Nodes{Reachable: 3, Lost: lostAt(1, 4)}, 2, 2},
		{"one is given up", Nodes{Reachable: 2, Lost: lostAt(0, 1), GivenUp: lostAt(4)}, 3, 2},
		{"one that was lost before is given up", Nodes{Reachable: 1, Lost: lostAt(0, 1, 4), GivenUp: lostAt(-1000)}, 3, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := JudgeWeather(c.nodes, &stored, 33)
			if w.Storm == nil || w.Storm.Count != c.count || w.Storm.Of != c.nodes.Reachable+c.count || len(w.Held) != c.held || !w.Storm.Since.Equal(stored.Since) {
				t.Errorf("held %v, storm %+v", w.Held, w.Storm)
			}
		})
	}
}
