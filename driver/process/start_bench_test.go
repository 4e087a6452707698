package process_test

import (
	"sync"
	"testing"

	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

// BenchmarkStart starts instances, one after another and two hundred at once, with
// and without isolation.
func BenchmarkStart(b *testing.B) {
	for name, with := range map[string]process.Isolation{"isolated": process.IsolationRequired, "plain": process.IsolationOff} {
		for batch, count := range map[string]int{"one": 1, "200 at once": 200} {
			b.Run(name+"/"+batch, func(b *testing.B) {
				d, err := process.New(process.Options{Root: b.TempDir(), Isolation: with})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				for range b.N {
					ids := make([]string, count)
					var all sync.WaitGroup
					for n := range ids {
						ids[n] = drivertest.NewID()
						all.Go(func() {
							if _, err := d.Start(b.Context(), instance(ids[n], "sleep", "1000")); err != nil {
								b.Error(err)
							}
						})
					}
					all.Wait()
					b.StopTimer()
					for _, id := range ids {
						if err := d.Remove(b.Context(), id); err != nil {
							b.Error(err)
						}
					}
					b.StartTimer()
				}
			})
		}
	}
}
