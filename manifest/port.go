package manifest

import (
	"slices"
	"strconv"
	"strings"

	"mariposa"
)

// portPath is the instance's first port on its node.
const portPath = "instance.port"

// HoldsPort reports whether a text contains a reference to the instance's port.
func HoldsPort(text string) bool { return slices.Contains(pathsIn(text), portPath) }

// resolveWithMark resolves a service with a mark for the port, chosen so that it occurs
// nowhere else: a value that looks like a mark is never replaced.
func resolveWithMark(svc *mariposa.Service, scope Scope) (*mariposa.Workload, error) {
	used := 0
	for _, path := range pathsOf(svc) {
		if path == portPath {
			used++
		}
	}
	for n := 0; ; n++ {
		mark := "{{ .instance.port }}"
		if n > 0 {
			mark = "{{ .instance.port." + strconv.Itoa(n) + " }}"
		}
		scope.Instance.Port = mark
		w, err := resolve(svc, scope)
		if err != nil || countMarks(w, mark) == used {
			if w != nil {
				w.PortMark = mark
			}
			return w, err
		}
	}
}

// countMarks counts where a mark occurs in a workload, overlaps included.
func countMarks(w *mariposa.Workload, mark string) (n int) {
	count := func(text string) {
		for {
			at := strings.Index(text, mark)
			if at < 0 {
				return
			}
			n++
			text = text[at+1:]
		}
	}
	for _, word := range slices.Concat(w.Command, w.Entrypoint) {
		count(word)
	}
	for _, v := range slices.Concat(w.Environment, w.Tags, w.Files) {
		count(v.Value)
	}
	return n
}

// ownPort checks a reference to the instance's own port.
func (c *checker) ownPort(d *draft, ref usedPath) {
	key := ref.at
	for key.up != nil && key.up != d.at {
		key = key.up
	}
	switch {
	case key.key == "tags" || key.key == "labels" || key.key == "mdata":
		c.invalid(ref.at, "refers to %s, which is only known on the node; use it in command, environment or files", quoteText(ref.path))
	case d.at.child("ports") == nil:
		c.invalid(ref.at, "refers to %s, but %s has no ports; declare one under its ports:", quoteText(ref.path), quoteText(d.Name))
	}
}
