package postgres

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"mariposa"
	"mariposa/store"
)

// maxName is the maximum length of a name: an index entry contains two names and must fit
// into a third of a page.
const maxName = 1000

// isName reports whether the database can store a text as a name.
func isName(s string) bool {
	return len(s) <= maxName && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

func badName(what, s string) error {
	if len(s) > maxName {
		return fmt.Errorf("%s has %d bytes; the limit is %d", what, len(s), maxName)
	}
	return fmt.Errorf("%s %q must be UTF-8 text without NUL bytes", what, s)
}

// checkStorable finds units that the server would refuse, together with the rest of their
// group.
func checkStorable(u *store.Unit) error {
	for i := range u.Fences {
		if !isName(u.Fences[i].Lease) {
			return badName("lease", u.Fences[i].Lease)
		}
	}
	for i := range u.Claims {
		if !isName(u.Claims[i].Node) {
			return badName("node", u.Claims[i].Node)
		}
	}
	for i := range u.Require {
		if !isName(u.Require[i].ID) || !isName(string(u.Require[i].Kind)) {
			return badName("id", u.Require[i].ID)
		}
	}
	for i := range u.Writes {
		w := &u.Writes[i]
		for _, name := range [...]struct{ what, value string }{
			{"kind", string(w.Kind)}, {"id", w.ID}, {"project", w.Project}, {"project", w.Event.Project}, {"task", w.Event.Task},
		} {
			if !isName(name.value) {
				return badName(name.what, name.value)
			}
		}
		if st, _ := w.Status.(*mariposa.TaskStatus); st != nil && !isName(string(st.State)) {
			return badName("state", string(st.State))
		}
	}
	return nil
}
