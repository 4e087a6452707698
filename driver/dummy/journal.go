package dummy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// journal stores a world in a file: one line for each change. The last line of an
// instance is the valid one. The file is rewritten when it is opened and when most of it
// is outdated.
type journal struct {
	path  string
	file  *os.File
	lines int
	size  int64 // up to the end of the last complete line
	line  bytes.Buffer
}

// openJournal reads a world into instances and keeps the file open for appending. An
// incomplete last line, left by a full disk or a power cut, is dropped.
func openJournal(path string, instances map[string]*instance) (*journal, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the dummy journal: %w", err)
	}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if !whole {
			break
		}
		in := new(instance)
		if err := json.Unmarshal(line, in); err != nil || in.ID == "" {
			if len(rest) == 0 {
				break
			}
			return nil, fmt.Errorf("cannot read the dummy journal: %s is damaged in line %d; delete it to start over", path, n)
		}
		if in.Reason == reasonStarting {
			in.Reason = reasonCanceled // the agent that started it is gone
		}
		if in.Gone {
			delete(instances, in.ID)
		} else {
			instances[in.ID] = in
		}
		b = rest
	}
	j := &journal{path: path}
	if err := j.rewrite(instances); err != nil {
		return nil, err
	}
	return j, nil
}

// rewrite replaces the file with one line for each instance.
func (j *journal) rewrite(instances map[string]*instance) error {
	f, err := os.OpenFile(j.path+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write the dummy journal: %w", err)
	}
	j.line.Reset()
	encoder := json.NewEncoder(&j.line)
	for _, in := range instances {
		if err := encoder.Encode(in); err != nil {
			return err
		}
	}
	n, err := f.Write(j.line.Bytes())
	if err == nil {
		err = os.Rename(j.path+".tmp", j.path)
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("cannot write the dummy journal: %w", err)
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file, j.lines, j.size = f, len(instances), int64(n)
	if j.line.Cap() > 1<<20 {
		j.line = bytes.Buffer{}
	}
	return nil
}

// append writes one line. It is not synced: a crash of this program does not lose it, and
// a crash of the machine would also end the processes that dummies simulate.
func (j *journal) append(in *instance, instances map[string]*instance) error {
	if j.lines > 4*len(instances)+10_000 {
		if err := j.rewrite(instances); err != nil {
			return err
		}
	}
	j.line.Reset()
	if err := json.NewEncoder(&j.line).Encode(in); err != nil {
		return err
	}
	n, err := j.file.Write(j.line.Bytes())
	if err != nil {
		// An incomplete line in the middle would damage the file; the next line
		// overwrites it.
		_ = j.file.Truncate(j.size)
		_, _ = j.file.Seek(j.size, io.SeekStart)
		return fmt.Errorf("cannot write the dummy journal: %w", err)
	}
	j.lines++
	j.size += int64(n)
	return nil
}

func (j *journal) close() error { return j.file.Close() }
