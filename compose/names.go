package compose

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// nameThings chooses the names of services, volumes, networks and metadata keys in the
// manifest, and notes those that change.
func (t *translation) nameThings() {
	t.serviceNames = rename(slices.Collect(maps.Keys(t.project.Services)), label, nil)
	for _, name := range t.inOrder(slices.Collect(maps.Keys(t.serviceNames))) {
		if to := t.serviceNames[name]; to != name {
			t.lost([]string{"services", name}, "is called %s in the manifest, because names are DNS labels; change what connects to it by name", to)
		}
	}
	t.volumeNames = rename(slices.Collect(maps.Keys(t.project.Volumes)), label, nil)
	t.noteRenamed("volumes", t.volumeNames)
	t.networkNames = rename(slices.Collect(maps.Keys(t.project.Networks)), label, nil)
	t.noteRenamed("networks", t.networkNames)
	t.nameExternal()
	t.metaNames = rename(slices.Collect(maps.Keys(t.project.Secrets)), metaName, map[string]bool{bracesKey: true})
	t.noteRenamed("secrets", t.metaNames)
}

// nameExternal gives external networks the names that other projects know them by.
func (t *translation) nameExternal() {
	taken := map[string]bool{}
	for _, name := range t.networkNames {
		taken[name] = true
	}
	for _, key := range slices.Sorted(maps.Keys(t.networkNames)) {
		n := t.project.Networks[key]
		if name := label(n.Name); bool(n.External) && !taken[name] {
			t.networkNames[key], taken[name] = name, true
		}
	}
}

func (t *translation) noteRenamed(kind string, names map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if to := names[name]; to != name {
			t.inform([]string{kind, name}, "is called %s in the manifest, because of the rules for names", to)
		}
	}
}

// rename gives each name one that fits the rules, and different ones to different names. A
// name that fits stays.
func rename(names []string, fit func(string) string, used map[string]bool) map[string]string {
	to := make(map[string]string, len(names))
	taken := maps.Clone(used)
	if taken == nil {
		taken = map[string]bool{}
	}
	slices.Sort(names)
	for _, name := range names {
		if fit(name) == name && !taken[name] {
			to[name], taken[name] = name, true
		}
	}
	for _, name := range names {
		if to[name] == "" {
			to[name] = unique(fit(name), taken)
			taken[to[name]] = true
		}
	}
	return to
}

// unique adds a number to a name that is taken.
func unique(name string, taken map[string]bool) string {
	for n := 2; taken[name]; n++ {
		suffix := "-" + strconv.Itoa(n)
		base := strings.TrimRight(name, "-0123456789")
		base = strings.TrimRight(base[:min(len(base), 63-len(suffix))], "-")
		if next := cmp.Or(base, "x") + suffix; !taken[next] {
			return next
		}
	}
	return name
}

// label makes a DNS label of a name.
func label(name string) string {
	short := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	short = strings.Trim(short, "-")
	short = strings.TrimRight(short[:min(len(short), 63)], "-")
	return cmp.Or(short, "x")
}

// metaName makes a name of a metadata key of a name.
func metaName(name string) string {
	word := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-' || r == '.':
			return r
		}
		return '_'
	}, name)
	for strings.Contains(word, "..") {
		word = strings.ReplaceAll(word, "..", ".")
	}
	word = strings.Trim(word, ".")
	return cmp.Or(strings.TrimRight(word[:min(len(word), 200)], "."), "x")
}
