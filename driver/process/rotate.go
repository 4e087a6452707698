package process

import (
	"os"
	"strconv"
)

// rotatingLog appends to a log and, when it is full, moves it to log.1, log.1 to
// log.2 and so on; the oldest goes.
type rotatingLog struct {
	path string
	max  int64
	keep int // files in all
	file *os.File
	size int64
}

func openRotatingLog(path string, max int64, keep int) (*rotatingLog, error) {
	r := &rotatingLog{path: path, max: max, keep: keep}
	return r, r.open()
}

func (r *rotatingLog) open() error {
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	r.file, r.size = f, info.Size()
	return nil
}

func (r *rotatingLog) Write(p []byte) (int, error) {
	if r.size > 0 && r.size+int64(len(p)) > r.max {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := r.file.Write(p)
	r.size += int64(n)
	return n, err
}

func (r *rotatingLog) rotate() error {
	if r.keep < 2 {
		r.size = 0
		return r.file.Truncate(0)
	}
	for n := r.keep - 1; n > 0; n-- {
		err := os.Rename(rotated(r.path, n-1), rotated(r.path, n))
		if err != nil && !isGone(err) {
			return err
		}
	}
	old := r.file
	if err := r.open(); err != nil {
		return err // go on writing to the old one rather than to none
	}
	return old.Close()
}

// rotated names the nth older file of a log; 0 is the log itself.
func rotated(path string, n int) string {
	if n == 0 {
		return path
	}
	return path + "." + strconv.Itoa(n)
}
