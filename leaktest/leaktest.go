// Package leaktest fails a package's tests when a goroutine outlives them.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end. On a busy machine, one that is about
// to end may not run for a second; one that leaks is still there after ten.
const patience = 10 * time.Second

// Main runs the tests of a package. Call it as the last statement of TestMain.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := settled(); err != nil {
			fmt.Fprintln(os.Stderr, "the tests passed but leaked goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func settled() error {
	for late := time.Now().Add(patience); ; {
		err := goleak.Find() // waits about half a second itself
		if err == nil || time.Now().After(late) {
			return err
		}
	}
}
