// How a guest is told of memory and processors that its machine did not have when it booted: as by
// a real machine's firmware, so that stock kernels need no driver.
//
// A machine that loads the state of another may have more memory than that. The emulator says so at
// once (key 3 of its configuration device); the guest's kernel hears of it when FKGR is asked for its
// status, which a program does by reading a file: \_SB.FKGR then tells the kernel to look at the
// next of the memory devices FKM0 to FKM3, each of which is what one growth added. What was added
// before stands in variables of this table, in the guest's memory, and so goes with its state.
//
// Compiled by `iasl -p growth growth.asl` (Debian: acpica-tools). Revision 1: integers have 32 bits,
// as in the emulator's own tables, so memory is counted in units of 64 KiB.

DefinitionBlock ("growth.aml", "SSDT", 1, "FRKYRD", "GROWTH", 1)
{
    Scope (\_SB)
    {
        Device (FKGR)
        {
            Name (_HID, "FRKY0001")

            OperationRegion (CFGS, SystemIO, 0x0510, 2)
            Field (CFGS, WordAcc, NoLock, Preserve) { SELE, 16 }
            OperationRegion (CFGD, SystemIO, 0x0511, 1)
            Field (CFGD, ByteAcc, NoLock, Preserve) { BYTE, 8 }

            Name (KNOW, 0)      // Memory that the kernel has been told of; 0: not asked yet
            Name (LOWR, 0)      // Memory below 4 GiB
            Name (CNT, 0)       // Growths so far
            Name (BASE, Package (4) { 0, 0, 0, 0 })
            Name (SIZE, Package (4) { 0, 0, 0, 0 })

            // Memory that the machine has
            Method (HAVE, 0, Serialized)
            {
                SELE = 3
                Local0 = BYTE
                Local0 = BYTE
                Local0 = BYTE
                Local1 = 8
                While (Local1 < 32)
                {
                    Local2 = BYTE
                    Local0 |= (Local2 << Local1)
                    Local1 += 8
                }
                Return (Local0)
            }

            Method (_STA, 0, Serialized)
            {
                Local0 = HAVE ()
                If (KNOW == 0)
                {
                    KNOW = Local0
                    LOWR = Local0
                    If (LOWR >= 0xB000) { LOWR = 0x8000 }
                }
                If ((Local0 > KNOW) && (CNT < 4))
                {
                    BASE [CNT] = (KNOW - LOWR + 0x10000)
                    SIZE [CNT] = (Local0 - KNOW)
                    KNOW = Local0
                    CNT++
                    If (CNT == 1) { Notify (\_SB.FKM0, 1) }
                    If (CNT == 2) { Notify (\_SB.FKM1, 1) }
                    If (CNT == 3) { Notify (\_SB.FKM2, 1) }
                    If (CNT == 4) { Notify (\_SB.FKM3, 1) }
                }
                Return (0x0F)
            }

            // Status of the memory of one growth
            Method (STAT, 1, Serialized)
            {
                If (CNT > Arg0) { Return (0x0F) }
                Return (0)
            }

            // Place of the memory of one growth
            Method (AREA, 1, Serialized)
            {
                Name (BUF, ResourceTemplate ()
                {
                    QWordMemory (ResourceProducer, PosDecode, MinFixed, MaxFixed, Cacheable, ReadWrite,
                        0, 0, 0xFFFFFFFFFFFFFFFE, 0, 0xFFFFFFFFFFFFFFFF)
                })
                CreateDWordField (BUF, 14, MINL)
                CreateDWordField (BUF, 18, MINH)
                CreateDWordField (BUF, 22, MAXL)
                CreateDWordField (BUF, 26, MAXH)
                CreateDWordField (BUF, 38, LENL)
                CreateDWordField (BUF, 42, LENH)
                Local0 = DerefOf (BASE [Arg0])
                Local1 = DerefOf (SIZE [Arg0])
                MINL = (Local0 << 16)
                MINH = (Local0 >> 16)
                LENL = (Local1 << 16)
                LENH = (Local1 >> 16)
                Local2 = (Local0 + Local1 - 1)
                MAXL = ((Local2 << 16) | 0xFFFF)
                MAXH = (Local2 >> 16)
                Return (BUF)
            }
        }

        Device (FKM0)
        {
            Name (_HID, EisaId ("PNP0C80"))
            Name (_UID, 0xF0)
            Method (_STA, 0, Serialized) { Return (\_SB.FKGR.STAT (0)) }
            Method (_CRS, 0, Serialized) { Return (\_SB.FKGR.AREA (0)) }
        }

        Device (FKM1)
        {
            Name (_HID, EisaId ("PNP0C80"))
            Name (_UID, 0xF1)
            Method (_STA, 0, Serialized) { Return (\_SB.FKGR.STAT (1)) }
            Method (_CRS, 0, Serialized) { Return (\_SB.FKGR.AREA (1)) }
        }

        Device (FKM2)
        {
            Name (_HID, EisaId ("PNP0C80"))
            Name (_UID, 0xF2)
            Method (_STA, 0, Serialized) { Return (\_SB.FKGR.STAT (2)) }
            Method (_CRS, 0, Serialized) { Return (\_SB.FKGR.AREA (2)) }
        }

        Device (FKM3)
        {
            Name (_HID, EisaId ("PNP0C80"))
            Name (_UID, 0xF3)
            Method (_STA, 0, Serialized) { Return (\_SB.FKGR.STAT (3)) }
            Method (_CRS, 0, Serialized) { Return (\_SB.FKGR.AREA (3)) }
        }
    }
}
