package codec

import (
	"encoding/binary"

	"mariposa/store"
)

// Thinned is a chunk without the changes of one project.
type Thinned struct {
	Body     []byte   // nil: nothing is left
	Mentions bool     // the remaining events mention the project
	Tasks    []string // those that are no longer mentioned
}

// Thin removes the changes of a project from a chunk.
func (c *Codec) Thin(first int64, body []byte, project string) (Thinned, error) {
	var t Thinned
	plain, next := []byte{thinnedVersion}, first
	kept, gone := make(map[string]bool), make(map[string]bool)
	ofProject := store.HistoryQuery{Project: project}
	err := c.eachEntry(first, body, func(e Entry, encoded []byte) {
		change := e.Head()
		if change.Owner() == project {
			gone[change.Event.Task] = true
			return
		}
		kept[change.Event.Task] = true
		t.Mentions = t.Mentions || project != "" && ofProject.Matches(change)
		plain = binary.AppendUvarint(plain, uint64(change.Revision-next))
		plain = append(plain, encoded...)
		next = change.Revision + 1
	})
	if err != nil {
		return Thinned{}, err
	}
	for task := range gone {
		if task != "" && !kept[task] {
			t.Tasks = append(t.Tasks, task)
		}
	}
	if len(plain) > 1 {
		t.Body = c.encoder.EncodeAll(plain, nil)
	}
	return t, nil
}
